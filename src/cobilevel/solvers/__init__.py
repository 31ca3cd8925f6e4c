"""The solvers, one algorithm a file, with parts that several share; new ones derive from ``iteration.Stochastic``."""

from .amigo import AmIGO as AmIGO
from .bsa import BSA as BSA
from .f2sa import F2SA as F2SA
from .fdehbo import FdeHBO as FdeHBO
from .hoag import HOAG as HOAG
from .newton import Newton as Newton
from .recursive_momentum import MRBO as MRBO
from .recursive_momentum import SUSTAIN as SUSTAIN
from .rsvrb import RSVRB as RSVRB
from .saba import SABA as SABA
from .soba import SOBA as SOBA
from .spaba import SPABA as SPABA
from .stable import STABLE as STABLE
from .stocbio import StocBiO as StocBiO
from .ttsa import TTSA as TTSA
from .vrbo import VRBO as VRBO

STOCHASTIC = (
    StocBiO, BSA, TTSA, STABLE, HOAG, AmIGO, SOBA, SABA, SUSTAIN, MRBO, VRBO, RSVRB, SPABA, F2SA, FdeHBO,
)  # fmt: skip
