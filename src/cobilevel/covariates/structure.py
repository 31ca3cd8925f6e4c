"""How much of a policy is additive, in pairs of coordinates, along few directions, or in all coordinates together."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import numpy as np
from jaxtyping import Int

from ..basis import Axes, KernelFeatures, Rotated
from ..problem import Box
from .fits import CLEARLY, Responses, nested_errors
from .regression import COUNTS, DEGREES, METRIC_ROWS, kernel_functions, tune_directions, tune_kernel


@dataclass(frozen=True)
class Structure:
    """Which functions follow a policy of many coordinates, on held-out samples.

    - `explained`: the share of the policy's variance, with its error, explained by functions that are ``"additive"``,
      of ``"pairs"`` of coordinates, along few ``"directions"``, or of ``"all"`` coordinates together (a kernel's);
      relative to the best of them, without the cost of estimating many coefficients.
    - `functions`: how many functions each family takes; ``"total degree"``: all products up to `degree`.
    - `directions`: the few directions, and the degree of the polynomials in them.
    - `supported`: how many functions the samples support.
    - `varies`: whether the samples show that the policy varies at all.
    """

    dimension: int
    supported: int
    degree: int
    directions: Rotated
    functions: Mapping[str, int]
    explained: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    varies: bool = True

    def __str__(self):
        if not self.varies:
            return f"nothing of the policy stands out from the noise; the samples support {self.supported} functions"
        names = {"directions": f"{self.directions.k} directions"}
        parts = [
            f"{names.get(name, name)} {share:.0%} +- {max(error, 0.005):.0%} ({self.functions[name]} functions)"
            for name, (share, error) in self.explained.items()
        ]
        return (
            f"explained by {', '.join(parts)}; there are {self.functions['total degree']} products up to degree "
            f"{self.degree}; the samples support {self.supported} functions"
        )


def additive_members(d: int, degree: int, pairs: bool = False) -> Int[np.ndarray, "N d"]:
    """The constant and polynomials of single coordinates, degree by degree; then first products of two, if asked."""
    unit = np.eye(d, dtype=int)
    rows = [np.zeros(d, int), *(k * row for k in range(1, degree + 1) for row in unit)]
    return np.stack(rows + [unit[i] + unit[j] for i, j in combinations(range(d), 2)] * pairs)


def structure_of(rows: Responses, supported: int) -> Structure:
    """What families of functions explain of the responses."""
    rows = rows.part(0.0, min(1.0, METRIC_ROWS / len(rows)))
    fitted, held = rows.to_tune(len(rows))
    d, most = rows.u.shape[1], max(2, min(supported, len(fitted) // 3))
    tuned, _, outer = tune_kernel(rows, [n for n in COUNTS[::2] if n <= most] or [2], KernelFeatures(most))
    cube = Box(-np.ones(d), np.ones(d))
    axes = Axes.of(cube)
    functions, left, degree = {}, {}, 1  # the squared errors held out, free of what fitting so many numbers costs

    def errors(table: Callable, counts: list[int]) -> np.ndarray:
        return nested_errors(fitted, held, (table(fitted.u), table(held.u)), counts)

    def record(name: str, size: int, squared: np.ndarray, numbers: int) -> None:
        # a fit of N numbers to n samples errs by 1 + N / (n - N - 1) times what more samples would leave
        functions[name], left[name] = size, squared / (1 + numbers / max(len(fitted) - numbers - 1, 1))

    if 1 + d <= most:
        highest = min(DEGREES[-1], (most - 1) // d)
        sizes = [1 + d * n for n in range(1, highest + 1)]
        tried = errors(lambda u: axes.table(u, additive_members(d, highest)), sizes)
        degree = 1 + int(np.argmin(tried @ held.shares))
        record("additive", sizes[degree - 1], tried[degree - 1], sizes[degree - 1])
    size = 1 + d * degree + comb(d, 2)
    if size <= most:
        both = additive_members(d, degree, pairs=True)
        record("pairs", size, errors(lambda u: axes.table(u, both), [size])[0], size)
    found = tune_directions(fitted, held, outer, max(most, 3))  # one direction and degree 2 at least
    assert found is not None
    few, tried = found
    size = few.basis.count(few.cube)
    record("directions", size, tried, size + few.k * (d - few.k))
    kernel = kernel_functions(tuned, fitted.u)
    size = kernel.on_cube(held.u[:1]).shape[1]
    record("all", size, errors(kernel.on_cube, [size])[0], size)
    functions["total degree"] = comb(d + degree, degree)
    flat = np.sum((held.t - fitted.shares @ fitted.t) ** 2, axis=1)
    means = {name: float(held.shares @ one) for name, one in left.items()}
    best = min(means, key=lambda name: means[name])
    total = float(held.shares @ flat) - means[best]
    if total <= CLEARLY * held.error_of(flat - left[best]):
        return Structure(d, supported, degree, few, functions, varies=False)
    explained = {
        name: (max(0.0, 1 - (means[name] - means[best]) / total), held.error_of(one - left[best]) / total)
        for name, one in left.items()
    }
    return Structure(d, supported, degree, few, functions, explained)
