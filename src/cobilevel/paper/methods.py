"""What is compared, by the paper's names: bases, and cells in two readings."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from ..basis import Basis, Chebyshev, FeatureMap, Fourier, Monomial, Partition
from ..problem import Study
from ..reduction import Reduced, reduce_study, reduce_with

BASES = ("Chebyshev", "Fourier", "Monomial")
PER_CELL, BARE = "stocBiO", "one-hot"  # stocBiO[N]: cells as problems of their own, or the bare indicator functions
FAMILIES: Mapping[str, Any] = {
    "Chebyshev": Chebyshev,
    "Fourier": Fourier,
    "Monomial": Monomial,
    PER_CELL: Partition,
    BARE: Partition,
}
_NAMES = {"Chebyshev": "R_Chebyshev", "Fourier": "R_Fourier", "Monomial": "R_monomial"}


def family_name(family: str) -> str:
    """What the paper calls a family."""
    return _NAMES.get(family, family)


def line_name(family: str) -> str:
    """What a line over all sizes of a family is called."""
    return _NAMES.get(family, f"{family}[N]")


@dataclass(frozen=True)
class Method:
    """What is run on every instance. The defaults are the experiment; other values belong to its ablation."""

    solver: str
    family: str
    N: int
    noise: float = 0.05
    period: float = 2.0
    batch: int = 64
    series: str = "sum"
    terms: int = 10

    @property
    def usual(self) -> bool:
        """Whether it belongs to the experiment, rather than to its ablation."""
        return self == Method(self.solver, self.family, self.N)

    @property
    def label(self) -> str:
        return f"{family_name(self.family)}[{self.N}]"

    @property
    def basis(self) -> Basis:
        if self.family == "Fourier":
            return Fourier(self.N, period=self.period)
        return FAMILIES[self.family](self.N)

    @property
    def scale(self) -> float:
        """What its functions are multiplied with.

        With indicator functions as they are, the lower gradient of a cell is its own mean times the chance of the
        cell, ``1/N``, and every step and every factor of the Neumann series is ``N`` times as short. Times
        ``sqrt(N)``, each cell takes steps on its own mean, as a problem of its own does.
        """
        return math.sqrt(self.N) if self.family == PER_CELL else 1.0

    def features(self, study: Study) -> FeatureMap:
        """Its functions, fitted to the contexts of a study."""
        fitted = reduce_study(study, self.basis).basis
        if self.scale == 1.0:
            return fitted
        dtype = fitted.constant.dtype
        scaled = jnp.asarray(self.scale, dtype) * jnp.eye(self.N, dtype=dtype)
        return FeatureMap(fitted.basis, fitted.domain, scaled, fitted.constant / jnp.asarray(self.scale, dtype))

    def reduced(self, study: Study) -> Reduced:
        """The reduced problem."""
        return reduce_with(study, self.features(study))
