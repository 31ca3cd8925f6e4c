"""One algorithm a file."""

from .amigo import AmIGO
from .bsa import BSA
from .f2sa import F2SA
from .fdehbo import FdeHBO
from .hoag import HOAG
from .mrbo import MRBO
from .newton import Newton
from .rsvrb import RSVRB
from .saba import SABA
from .soba import SOBA
from .spaba import SPABA
from .stable import STABLE
from .stocbio import StocBiO
from .sustain import SUSTAIN
from .ttsa import TTSA
from .vrbo import VRBO

STOCHASTIC = (
    StocBiO, BSA, TTSA, STABLE, HOAG, AmIGO, SOBA, SABA, SUSTAIN, MRBO, VRBO, RSVRB, SPABA, F2SA, FdeHBO,
)  # fmt: skip

__all__ = [
    "BSA", "F2SA", "HOAG", "MRBO", "RSVRB", "SABA", "SOBA", "SPABA", "STABLE", "STOCHASTIC", "SUSTAIN", "TTSA", "VRBO",
    "AmIGO", "FdeHBO", "Newton", "StocBiO",
]  # fmt: skip
