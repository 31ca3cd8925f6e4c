"""How much of a policy is additive, in pairs of coordinates, along few directions, or in all coordinates together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import numpy as np

from .directions_fit import degrees_up_to, fit_directions
from .kernel_fit import KernelMap, KernelSettings, tune_kernel
from .responses import Responses, nested_errors

FEWEST_DIMENSIONS = 4  # from which on coordinates are too many for all their products
_STRUCTURE_ROWS = 4096  # that are looked at
_FITTED_TO = 0.75  # share of them
_MOST_DEGREE = 8  # of functions of one coordinate
_KERNEL_COUNTS = (8, 16, 32, 64, 128, 256)
_VARIES = 3.0  # standard errors of the explained variance, from which on the policy varies


@dataclass(frozen=True)
class FewDirections:
    """How many directions, and the degree of the polynomials in them."""

    k: int
    degree: int


@dataclass(frozen=True)
class Structure:
    """What it takes to follow a policy of many coordinates, on samples held out.

    - `explained`: the share of the policy's variance, with its error, that functions explain which are ``"additive"``,
      of ``"pairs"`` of coordinates, along few ``"directions"``, or of ``"all"`` coordinates together (a kernel's). Of
      what the best of these explain; what estimating many coefficients costs is left out.
    - `functions`: how many functions each of these takes; ``"total degree"``: all products up to `degree`.
    - `supported`: how many the samples support.
    - `varies`: whether the policy varies at all, as far as these show.
    """

    dimension: int
    supported: int
    degree: int
    directions: FewDirections
    functions: Mapping[str, int]
    explained: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    varies: bool = True

    def __str__(self):
        if not self.varies:
            return f"nothing of the policy stands out of the noise; the samples support {self.supported} functions"
        names = {"directions": f"{self.directions.k} directions"}
        parts = [
            f"{names.get(name, name)} {share:.0%} +- {max(error, 0.005):.0%} ({self.functions[name]} functions)"
            for name, (share, error) in self.explained.items()
        ]
        return (
            f"explained by {', '.join(parts)}; all products up to degree {self.degree} are "
            f"{self.functions['total degree']}; the samples support {self.supported}"
        )


@dataclass(frozen=True)
class _Tried:
    """A set of functions: how many numbers are fitted, and the squared errors held out, free of what that costs."""

    functions: int
    left: np.ndarray

    @staticmethod
    def of(functions: int, fitted: int, numbers: int, errors: np.ndarray) -> "_Tried":
        # a fit of N numbers to n samples errs by 1 + N / (n - N - 1) times what more samples would leave
        return _Tried(functions, errors / (1 + numbers / max(fitted - numbers - 1, 1)))


def structure_of(rows: Responses, supported: int) -> Structure:
    """What families of functions explain of the responses."""
    rows = rows.part(0.0, min(1.0, _STRUCTURE_ROWS / len(rows)))
    fitted, held = rows.part(0.0, _FITTED_TO), rows.part(_FITTED_TO, 1.0)
    d, most = rows.u.shape[1], max(2, min(supported, len(fitted) // 3))
    settings, count, _, outer = tune_kernel(rows, [n for n in _KERNEL_COUNTS if n <= most] or [2])
    tried, degree = {}, 1
    if 1 + d <= most:
        degree, tried["additive"] = _additive(fitted, held, min(_MOST_DEGREE, (most - 1) // d))
    size = 1 + d * degree + comb(d, 2)
    if size <= most:
        both = lambda u: np.concatenate([_powers(u, degree), _pairs(u)], axis=1)
        errors = nested_errors(fitted, held, (both(fitted.u), both(held.u)), [size])[0]
        tried["pairs"] = _Tried.of(size, len(fitted), size, errors)
    few, tried["directions"] = _few_directions(fitted, held, outer, most)
    tried["all"] = _kernel(fitted, held, settings, count)
    functions = {name: one.functions for name, one in tried.items()}
    functions["total degree"] = comb(d + degree, degree)
    flat = np.sum((held.t - fitted.shares @ fitted.t) ** 2, axis=1)
    means = {name: float(held.shares @ one.left) for name, one in tried.items()}
    best = min(means, key=lambda name: means[name])
    total = float(held.shares @ flat) - means[best]
    error = held.error_of(flat - tried[best].left)
    if total <= _VARIES * error:
        return Structure(d, supported, degree, few, functions, varies=False)
    explained = {
        name: (max(0.0, 1 - (means[name] - means[best]) / total), held.error_of(one.left - tried[best].left) / total)
        for name, one in tried.items()
    }
    return Structure(d, supported, degree, few, functions, explained)


def _powers(u: np.ndarray, degree: int) -> np.ndarray:
    """The constant and Chebyshev polynomials of single coordinates, degree by degree."""
    powers = np.polynomial.chebyshev.chebvander(u, degree)[:, :, 1:]  # rows, coordinates, degrees
    return np.concatenate([np.ones((len(u), 1)), powers.transpose(0, 2, 1).reshape(len(u), -1)], axis=1)


def _pairs(u: np.ndarray) -> np.ndarray:
    return np.stack([u[:, i] * u[:, j] for i, j in combinations(range(u.shape[1]), 2)], axis=1)


def _additive(fitted: Responses, held: Responses, most: int) -> tuple[int, _Tried]:
    """Functions of single coordinates, up to the degree that errs least; that degree."""
    d = fitted.u.shape[1]
    counts = [1 + d * degree for degree in range(1, most + 1)]
    errors = nested_errors(fitted, held, (_powers(fitted.u, most), _powers(held.u, most)), counts)
    best = int(np.argmin(errors @ held.shares))
    return best + 1, _Tried.of(counts[best], len(fitted), counts[best], errors[best])


def _few_directions(fitted: Responses, held: Responses, outer: np.ndarray, most: int) -> tuple[FewDirections, _Tried]:
    """One or two directions, with the polynomials that err least; more only for more than a standard error."""
    best = None
    for k in (1, 2):
        for place in fit_directions(fitted, outer, k, degrees_up_to(k, most)):
            errors = nested_errors(fitted, held, (place.features(fitted.u), place.features(held.u)), [place.size])[0]
            numbers = place.size + k * (fitted.u.shape[1] - k)
            tried = _Tried.of(place.size, len(fitted), numbers, errors)
            gain = np.zeros(len(held)) if best is None else best[1].left - tried.left
            if best is None or float(held.shares @ gain) > held.error_of(gain):
                best = FewDirections(k, place.degree), tried
    assert best is not None  # the samples support a degree
    return best


def _kernel(fitted: Responses, held: Responses, settings: KernelSettings, count: int) -> _Tried:
    made = KernelMap.tuned(fitted.u, settings, count)
    tables = made.features(fitted.u), made.features(held.u)
    size = tables[0].shape[1]
    return _Tried.of(size, len(fitted), size, nested_errors(fitted, held, tables, [size])[0])
