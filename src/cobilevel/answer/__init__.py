"""Solutions: the decision and the policy, printed, plotted and saved; and whether problems and runs are the same."""

from .identity import Objectives, different_functions, function_digests, run_digests, share_seen
from .job import Interrupted, Job, ReducedProblem, check_objectives
from .loading import load
from .plot_policy import COLOURS, DOTS, DPI, shown_figure, tidy, written_figure
from .solution import Solution, as_solved, check_levels, check_solution
from .summary import html_block
