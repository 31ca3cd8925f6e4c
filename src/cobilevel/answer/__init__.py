"""What comes back: the decision and the policy, the sentence a run ends with, and the file they are saved in."""

from .drawing import COLOURS as COLOURS
from .drawing import DOTS as DOTS
from .drawing import DPI as DPI
from .drawing import shown_figure as shown_figure
from .drawing import tidy as tidy
from .feasibility import Feasibility as Feasibility
from .feasibility import Met as Met
from .identity import Objectives as Objectives
from .identity import different_functions as different_functions
from .identity import function_digests as function_digests
from .identity import run_digests as run_digests
from .identity import same_features as same_features
from .identity import state_identity as state_identity
from .loading import load as load
from .notebook import html_block as html_block
from .result import Result as Result
from .solution import Saved as Saved
from .solution import Solution as Solution
from .solution import as_solved as as_solved
from .solution import check_solution as check_solution
from .uncertainty import Uncertainty as Uncertainty
from .uncertainty import like_x as like_x
from .uncertainty import names_of as names_of
from .uncertainty import unknown as unknown
