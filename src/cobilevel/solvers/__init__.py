"""The solvers, one algorithm a file, with parts that several share; new ones derive from ``iteration.Stochastic``."""

from .amigo import AmIGO
from .bsa import BSA
from .f2sa import F2SA
from .fdehbo import FdeHBO
from .hoag import HOAG
from .newton import Newton
from .recursive_momentum import MRBO, SUSTAIN
from .rsvrb import RSVRB
from .saba import SABA
from .soba import SOBA
from .spaba import SPABA
from .stable import STABLE
from .stocbio import StocBiO
from .ttsa import TTSA
from .vrbo import VRBO

STOCHASTIC = (
    StocBiO, BSA, TTSA, STABLE, HOAG, AmIGO, SOBA, SABA, SUSTAIN, MRBO, VRBO, RSVRB, SPABA, F2SA, FdeHBO,
)  # fmt: skip
