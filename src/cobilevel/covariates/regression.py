"""Regression of responses on functions of a kernel, and on polynomials along the few directions a policy varies along.

Gradients of a kernel's ridge regression show which coordinates and directions matter. Directions are then refined with
polynomials in them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from ..basis import METRICS, KernelFeatures, Rotated, TotalDegree, kernel_profile, kernel_slope, squared_distances
from ..ground import put
from .fits import MULTIPLICATIONS, SETTLED, Responses, nested_errors, orthonormalising

FEWEST_DIMENSIONS = 4  # from which on coordinates are too many for all their products
COUNTS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # functions of a kernel
DEGREES = (2, 3, 5, 7, 9)  # of polynomials along directions, in turn: low ones find the way
_VISIBLE = 1e-8  # eigenvalue of a kernel, relative to the largest: below, functions drown in rounding
_PENALTIES = 10.0 ** np.arange(-6, 1.6, 0.5)  # tried, relative to the mean square of a function
METRIC_ROWS = MULTIPLICATIONS // 8 // COUNTS[-1] ** 2  # while metrics are compared, by some eight regressions


# -- kernels


@dataclass(frozen=True)
class KernelSettings:
    """What a kernel is: its profile, its `metric` by name, its `axes` (with trace ``d``) and its `scale`."""

    kernel: str
    metric: str
    axes: Float[np.ndarray, "d k"]
    scale: float


@dataclass(frozen=True)
class KernelMap:
    """The constant and the leading functions of a kernel: `axes` over its scale, landmarks there, what to mix there."""

    settings: KernelSettings
    axes: Float[np.ndarray, "d k"]
    landmarks: Float[np.ndarray, "p k"]
    table: Float[np.ndarray, "p m"]

    @staticmethod
    def of(
        settings: KernelSettings, u: np.ndarray, count: int, seed: int = 0, landmarks: int | None = None
    ) -> "KernelMap":
        """The constant and up to ``count - 1`` functions, of mean square one at the landmarks, which are drawn from the
        contexts: four for each function unless stated, within 300 and 512. Those that rounding hides are left out."""
        landmarks = int(np.clip(4 * count, 300, 512)) if landmarks is None else landmarks
        axes = settings.axes / settings.scale
        points = u[np.random.default_rng(seed).permutation(len(u))[:landmarks]] @ axes
        values, vectors = np.linalg.eigh(kernel_profile(settings.kernel, squared_distances(points, points)))
        kept = np.flatnonzero(values > _VISIBLE * values[-1])[::-1][: count - 1]
        return KernelMap(settings, axes, points, vectors[:, kept] / values[kept] * len(points) ** 0.5)

    def features(self, u: np.ndarray) -> Float[np.ndarray, "n m"]:
        """With the constant first."""
        phi = kernel_profile(self.settings.kernel, squared_distances(u @ self.axes, self.landmarks)) @ self.table
        return np.concatenate([np.ones((len(u), 1)), phi], axis=1)

    def kept_in(self, recipe: KernelFeatures) -> KernelFeatures:
        """A recipe with these functions."""
        axes, landmarks, table = put(tuple(np.asarray(part) for part in (self.axes, self.landmarks, self.table)))
        return replace(recipe, axes=axes, landmarks=landmarks, table=table)


class _Ridge(NamedTuple):
    """A ridge regression on functions of a kernel: the error expected by generalised cross-validation, what it fits,
    and the mean of the outer products of its gradients."""

    expected: float
    settings: KernelSettings
    fitted: Float[np.ndarray, "n k"]
    outer: Float[np.ndarray, "d d"]


def _ridge(rows: Responses, settings: KernelSettings, seed: int) -> _Ridge:
    made = KernelMap.of(settings, rows.u, COUNTS[-1] + 1, seed, COUNTS[-1])
    phi, middle = made.features(rows.u)[:, 1:], rows.shares @ rows.t
    phi, target = phi - rows.shares @ phi, rows.root * (rows.t - middle)
    table = rows.root * phi
    squares, vectors = np.linalg.eigh(table.T @ table)  # rounding is below any noise here
    seen = squares > 1e-14 * squares[-1]
    squares, vectors = squares[seen], vectors[:, seen]
    along = vectors.T @ (table.T @ target) / np.sqrt(squares)[:, None]
    best, mixed = np.inf, along
    for penalty in _PENALTIES:
        kept = squares / (squares + penalty)
        misfit = float(np.sum(target**2) - np.sum((along**2).T * (2 * kept - kept**2)))
        expected = misfit / (1 - (1 + kept.sum()) / len(rows)) ** 2 if kept.sum() < len(rows) / 2 else np.inf
        if expected < best:
            best, mixed = expected, along * (kept / np.sqrt(squares))[:, None]
    coefficients = vectors @ mixed
    outer, z = np.zeros((len(settings.axes),) * 2), rows.u @ made.axes
    slopes = 2 * kernel_slope(settings.kernel, squared_distances(z, made.landmarks))
    for weights in (made.table @ coefficients).T:
        steep = z * (slopes @ weights)[:, None] - slopes @ (weights[:, None] * made.landmarks)
        steep = (steep @ made.axes.T) * rows.root
        outer += steep.T @ steep
    return _Ridge(best, settings, middle + phi @ coefficients, outer)


def _axes(outer: np.ndarray, metric: str) -> np.ndarray:
    """The axes of a metric, normalised to the trace of the isotropic one."""
    outer = outer * len(outer) / max(np.trace(outer), np.finfo(float).tiny)
    if metric == "coordinates":
        return np.diag(np.sqrt(np.diag(outer)))
    values, vectors = np.linalg.eigh(outer)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def _median_distance(z: np.ndarray) -> float:
    """Between 200 of the places."""
    return float(np.sqrt(np.median(squared_distances(z[:200:2], z[1:200:2])))) or 1.0


def fit_kernel(
    rows: Responses,
    kernel: str = "gaussian",
    metrics: Sequence[str] = ("isotropic",),
    scale: float | None = None,
    seed: int = 0,
    ratios: Sequence[float] = (0.7, 1.4, 2.8),
) -> tuple[dict[str, KernelSettings], np.ndarray]:
    """The settings for each metric asked for, and the mean outer product of the gradients of the isotropic fit.

    `ratios`: the scales tried, in median distances of landmarks, unless a `scale` is given.
    """

    def best(rows: Responses, metric: str, axes: np.ndarray, ratios: Sequence[float]) -> _Ridge:
        """The regression with the scale that is expected to err least."""
        middle = _median_distance(rows.u @ axes)
        scales = [ratio * middle for ratio in ratios] if scale is None else [scale]
        tried = (_ridge(rows, KernelSettings(kernel, metric, axes, one), seed) for one in scales)
        return min(tried, key=lambda ridge: ridge.expected)

    first = best(rows, "isotropic", np.eye(rows.u.shape[1]), ratios)
    rows, found = rows.leading(first.fitted), {}
    for metric in metrics:
        ridge = first
        learned = metric != "isotropic" and np.trace(first.outer) > 0
        for tried in ((1.0,), ratios[:2]) if learned else ():  # gradients of a fit give the metric of the next
            ridge = best(rows, metric, _axes(ridge.outer, metric), tried)
        found[metric] = replace(ridge.settings, metric=metric)
    return found, first.outer


def tune_kernel(
    rows: Responses,
    counts: Sequence[int],
    kernel: str = "gaussian",
    metric: str | None = None,
    scale: float | None = None,
    seed: int = 0,
) -> tuple[KernelSettings, int, float, np.ndarray]:
    """The metric, the scale and the number of functions (of `counts`) that err least on rows held out.

    And that error, and the mean outer product of the gradients of a first fit.
    """

    def best_count(settings: KernelSettings, most: int) -> tuple[KernelSettings, int, float]:
        fitted, held = rows.to_tune(most)
        made = KernelMap.of(settings, fitted.u, max(counts), seed)
        errors = nested_errors(fitted, held, (made.features(fitted.u), made.features(held.u)), counts) @ held.shares
        return settings, counts[int(np.argmin(errors))], float(errors.min())

    metrics = METRICS if metric is None else (metric,)
    found, outer = fit_kernel(rows.to_tune(METRIC_ROWS)[0], kernel, metrics, scale, seed)
    best = min((best_count(settings, METRIC_ROWS) for settings in found.values()), key=lambda tried: tried[2])
    if len(rows) > METRIC_ROWS and len(counts) > 1:  # more rows are worth more functions
        best = best_count(best[0], len(rows))
    return *best, outer


def refreshed(rows: Responses, settings: KernelSettings, seed: int = 0) -> KernelSettings:
    """Tuned settings with the metric learned once more from all rows; the scale stays the same share of distances."""
    if settings.metric == "isotropic" or not np.trace(outer := _ridge(rows, settings, seed).outer) > 0:
        return settings
    axes = _axes(outer, settings.metric)
    scale = settings.scale * _median_distance(rows.u @ axes) / _median_distance(rows.u @ settings.axes)
    return replace(settings, axes=axes, scale=scale)


# -- directions


@dataclass(frozen=True)
class Projected:
    """Polynomials of total degree up to `degree` in ``u @ axes + shift``, where observed contexts fill the cube.

    All but a few of them: those last ones, and contexts further out, count as lying on its faces, so that no polynomial
    grows where hardly any data hold it.
    """

    axes: Float[np.ndarray, "d k"]
    shift: Float[np.ndarray, " k"]
    degree: int

    @property
    def k(self) -> int:
        """How many directions there are."""
        return self.axes.shape[1]

    @property
    def size(self) -> int:
        """How many functions there are."""
        return comb(self.degree + self.k, self.degree)

    def place(self, u: np.ndarray) -> Float[np.ndarray, "n k"]:
        """Contexts in the cube."""
        return np.clip(u @ self.axes + self.shift, -1, 1)

    def features(self, u: np.ndarray, along: int | None = None) -> Float[np.ndarray, "n N"]:
        """Products of Chebyshev polynomials by total degree, or their derivatives along one direction of the cube."""
        z, members = self.place(u), TotalDegree().table(self.degree + 1, self.k)
        phi = np.ones((len(z), len(members)))
        for j in range(self.k):
            powers = np.polynomial.chebyshev.chebvander(z[:, j], self.degree)
            if j == along:
                powers = powers[:, :-1] @ np.polynomial.chebyshev.chebder(np.eye(self.degree + 1))
            phi *= powers[:, members[:, j]]
        return phi

    def kept_in(self, recipe: Rotated) -> Rotated:
        """A recipe with these directions."""
        axes, shift = put((np.asarray(self.axes), np.asarray(self.shift)))
        return replace(recipe, axes=axes, shift=shift)


class _PolynomialFit:
    """Polynomials along some directions, fitted: `left` is the square of what they leave; `outside`: how many contexts
    on either side count as lying on the faces of the cube."""

    def __init__(self, rows: Responses, directions: np.ndarray, degree: int, outside: int = 5):
        turned = np.linalg.qr(directions)[0]
        z = rows.u @ turned
        out = min(outside / len(z), 0.25)
        lo, hi = np.quantile(z, (out, 1 - out), axis=0)
        wide = np.where(hi > lo, hi - lo, 1.0)
        self.rows, self.place = rows, Projected(2 * turned / wide, -(lo + hi) / wide, degree)
        table = self.place.features(rows.u)
        forth = orthonormalising(table, rows.shares)
        self.q = rows.root * (table @ forth)
        along = self.q.T @ (rows.root * rows.t)
        self.coefficients = forth @ along
        self.residual = rows.root * rows.t - self.q @ along
        self.left = float(np.sum(self.residual**2))

    def model(self) -> tuple[np.ndarray, np.ndarray]:
        """The Gauss-Newton matrix and the descent in the axes, with the polynomials following along."""
        rows, (d, k) = self.rows, self.place.axes.shape
        inside = np.abs(self.place.place(rows.u)) < 1
        slopes = [inside[:, [j]] * (self.place.features(rows.u, j) @ self.coefficients) for j in range(k)]
        matrix, descent = np.zeros((k * d, k * d)), np.zeros(k * d)
        for component in range(rows.t.shape[1]):
            table = np.concatenate([slope[:, component, None] * rows.u for slope in slopes], axis=1) * rows.root
            table = table - self.q @ (self.q.T @ table)
            matrix += table.T @ table
            descent += table.T @ self.residual[:, component]
        return matrix, descent


def refined(
    rows: Responses, place: Projected, trials: int = 8, damping: float = 1e-3, harder: float = 10.0
) -> Projected:
    """The same polynomials along refined directions, by the method of Levenberg and Marquardt; `damping` is relative to
    the mean curvature, and changes by the factor `harder`."""
    here = _PolynomialFit(rows, place.axes, place.degree)
    matrix, descent = here.model()
    for _ in range(trials):
        unit = np.trace(matrix) / len(matrix) * np.eye(len(matrix))
        if not unit[0, 0] > 0:
            break
        step = np.linalg.solve(matrix + damping * unit, descent).reshape(place.axes.T.shape).T
        ahead = _PolynomialFit(rows, here.place.axes + step, place.degree)
        if not ahead.left < here.left:
            damping *= harder
            continue
        gain, here, damping = 1 - ahead.left / here.left, ahead, damping / harder
        if gain < SETTLED:
            break
        matrix, descent = here.model()
    return here.place


def fit_directions(rows: Responses, outer: np.ndarray, k: int, degrees: Sequence[int]) -> Iterator[Projected]:
    """Directions with polynomials of growing degree, from the leading ones of the gradients' outer product."""
    place = Projected(np.linalg.eigh(outer)[1][:, ::-1][:, :k], np.zeros(k), 0)
    for degree in degrees:
        place = refined(rows, replace(place, degree=degree))
        yield place


def degrees_up_to(k: int, most: int) -> tuple[int, ...]:
    """The degrees tried with ``k`` directions if at most `most` functions are supported."""
    return tuple(degree for degree in DEGREES if comb(degree + k, k) <= most)


def tune_directions(
    fitted: Responses, held: Responses, outer: np.ndarray, most: int
) -> tuple[Projected, Float[np.ndarray, " m"]] | None:
    """How many directions and which degree err least held out (another direction must be worth a standard error); and
    the squared errors. ``None`` where the samples support no degree."""
    best = None
    for k in range(1, min(FEWEST_DIMENSIONS, fitted.u.shape[1])):
        least = np.inf
        for place in fit_directions(fitted, outer, k, degrees_up_to(k, most)):
            errors = nested_errors(fitted, held, (place.features(fitted.u), place.features(held.u)), [place.size])[0]
            error = float(errors @ held.shares)
            if best is None or error + (k > best[0].k) * held.error_of(errors - best[1]) < best[1] @ held.shares:
                best = (place, errors)
            if error > least:  # more functions fit noise
                break
            least = error
    return best
