"""What comes back: the decision and the policy, the sentence a run ends with, and the file they are saved in."""

from .identity import Objectives, different_functions, function_digests, run_digests, same_features, state_identity
from .loading import load
from .plot_policy import COLOURS, DOTS, DPI, shown_figure, tidy
from .result import Feasibility, Result, Violation
from .solution import Saved, Solution, as_solved, check_solution
from .summary import html_block
from .uncertainty import Uncertainty, names_of, unknown
