"""The solver protocol, the loop, the results of runs; and what solvers share: schedules, draws, step scales."""

from ..lower import ROUNDINGS, SOLVED
from .adam import Adam
from .checkpoint import Checkpoint
from .loop import Saved, advance, iterate, steps_on_host
from .result import Result
from .schedules import Cosine, PolynomialDecay, Schedule, at, check_schedule, is_optax, traced
from .solver import Clock, Evolving, Solver, State
from .step_scales import Scales, Start, lanczos, measure
from .stochastic import Draws, Stochastic, StochasticState, heavy_ball, storm
