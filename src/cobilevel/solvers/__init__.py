"""The solvers, a family a file, with parts that several share; new ones derive from ``iteration.Stochastic``."""

from .double_loop import F2SA, HOAG, AmIGO
from .newton import Newton
from .scout import Scout
from .series import BSA, MRBO, SUSTAIN, TTSA, VRBO, StocBiO
from .single_loop import SABA, SOBA, SPABA, FdeHBO
from .tracked_hessian import RSVRB, STABLE

STOCHASTIC = (
    StocBiO, BSA, TTSA, STABLE, HOAG, AmIGO, SOBA, SABA, SUSTAIN, MRBO, VRBO, RSVRB, SPABA, F2SA, FdeHBO,
)  # fmt: skip
