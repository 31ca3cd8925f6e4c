"""The solver protocol, the one loop, and what solvers share: schedules, draws, the scales of default step sizes."""

from .checkpoint import Checkpoint as Checkpoint
from .draws import Draws as Draws
from .estimators import heavy_ball as heavy_ball
from .estimators import storm as storm
from .interruption import Interrupted as Interrupted
from .job import Job as Job
from .loop import advance as advance
from .loop import run as run
from .quasi_newton import QuasiNewtonMemory as QuasiNewtonMemory
from .same_run import run_digests as run_digests
from .schedules import Cosine as Cosine
from .schedules import PolynomialDecay as PolynomialDecay
from .schedules import Schedule as Schedule
from .schedules import at as at
from .schedules import check_schedule as check_schedule
from .schedules import is_optax as is_optax
from .schedules import traced as traced
from .solver import Clock as Clock
from .solver import Solver as Solver
from .solver import State as State
from .step_scales import Scales as Scales
from .step_scales import Start as Start
from .step_scales import lanczos as lanczos
from .step_scales import measure as measure
from .stochastic import Stochastic as Stochastic
from .stochastic_state import StochasticState as StochasticState
