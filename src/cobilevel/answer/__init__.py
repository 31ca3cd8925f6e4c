"""What comes back: the decision and the policy, the sentence a run ends with, and the file they are saved in."""

from .identity import Objectives as Objectives
from .identity import different_functions as different_functions
from .identity import function_digests as function_digests
from .identity import run_digests as run_digests
from .identity import same_features as same_features
from .identity import state_identity as state_identity
from .loading import load as load
from .plot_policy import COLOURS as COLOURS
from .plot_policy import DOTS as DOTS
from .plot_policy import DPI as DPI
from .plot_policy import shown_figure as shown_figure
from .plot_policy import tidy as tidy
from .result import Feasibility as Feasibility
from .result import Result as Result
from .result import Violation as Violation
from .solution import Saved as Saved
from .solution import Solution as Solution
from .solution import as_solved as as_solved
from .solution import check_solution as check_solution
from .summary import html_block as html_block
from .uncertainty import Uncertainty as Uncertainty
from .uncertainty import names_of as names_of
from .uncertainty import unknown as unknown
