"""One bilevel algorithm a file."""

from .newton import Newton as Newton
from .stocbio import StocBiO as StocBiO
