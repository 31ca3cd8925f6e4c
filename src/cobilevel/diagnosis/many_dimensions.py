"""What to take in many dimensions, from how much of the policy each family of functions explains."""

from itertools import combinations

import numpy as np

from ..basis import Basis, Chebyshev, KernelFeatures, Listed, Neural, Orthonormal, Rotated, TotalDegree
from ..covariates import Structure
from .diagnosis import Advice

_ENOUGH = 0.98  # share of the policy's variance from which on a simpler family will do


def about_structure(basis: Basis, structure: Structure, functions: int) -> list[Advice]:
    """The simplest family that explains nearly all, where it is not the one in question and takes fewer functions, or
    the one in question is none of those."""
    if not structure.varies:
        return []
    good = {name for name, (share, error) in structure.explained.items() if share + error >= _ENOUGH}
    name = next(name for name in ("additive", "directions", "pairs", "all") if name in good)
    better, inner = _family(name, structure), basis.basis if isinstance(basis, Orthonormal) else basis
    if isinstance(inner, KernelFeatures | Rotated | Neural) or functions <= structure.functions[name]:
        return []
    shares = ", ".join(f"{_EXPLAINING[one]} {share:.0%}" for one, (share, _) in structure.explained.items())
    what = f"of the policy's variance, held out, {shares} is explained"
    remedy = f"{structure.functions[name]} functions will do: {better!r}"
    return [Advice(what, remedy, basis=better)]


_EXPLAINING = {
    "additive": "by functions of single coordinates",
    "pairs": "by those of pairs",
    "directions": "along few directions",
    "all": "by functions of all coordinates",
}


def _family(name: str, structure: Structure) -> Basis:
    """A basis of a kind, of the size that was found."""
    d, unit = structure.dimension, np.eye(structure.dimension, dtype=int)
    if name == "directions":
        few = structure.directions
        return Orthonormal(Rotated(few.k, Chebyshev(few.degree + 1, index=TotalDegree())))
    if name == "all":
        return Orthonormal(KernelFeatures(structure.functions["all"]))
    rows = [np.zeros(d, int), *(k * row for k in range(1, structure.degree + 1) for row in unit)]
    if name == "pairs":
        rows += [unit[i] + unit[j] for i, j in combinations(range(d), 2)]
    return Orthonormal(Chebyshev(structure.degree + 1, index=Listed(np.stack(rows))))
