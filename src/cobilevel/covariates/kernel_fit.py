"""Functions of a kernel fitted to responses: its metric from gradients of a ridge regression, its scale, how many."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..basis import METRICS, kernel_profile, kernel_slope, squared_distances
from .responses import Responses, nested_errors

_RIDGE_LANDMARKS = 256  # of the regressions that find the metric
_RATIOS = (0.7, 1.4, 2.8)  # scales tried, in median distances of landmarks
_METRIC_ROUNDS = ((1.0,), (0.7, 1.4))  # the same where gradients of a fit give the metric of the next
_PENALTIES = 10.0 ** np.arange(-6, 1.6, 0.5)  # tried, relative to the mean square of a function
_LANDMARKS_EACH, _FEWEST_LANDMARKS, _MOST_LANDMARKS = 4, 300, 512  # for each function kept
_MEASURED = 200  # places whose distances are measured
_METRIC_ROWS = 4096  # at most, while metrics are compared
_VISIBLE = 1e-8  # eigenvalue, relative to the largest: below, functions drown in rounding
_MOST_COMPONENTS = 4  # of y, that the metric is learned from


@dataclass(frozen=True)
class KernelSettings:
    """What a kernel is: its profile, its `metric` by name, its `axes` (with trace ``d``) and its `scale`."""

    kernel: str
    metric: str
    axes: Float[np.ndarray, "d k"]
    scale: float


@dataclass(frozen=True)
class KernelMap:
    """The leading functions of a kernel: `axes` divided by its scale, landmarks there, and what to mix at these."""

    kernel: str
    metric: str
    axes: Float[np.ndarray, "d k"]
    landmarks: Float[np.ndarray, "p k"]
    table: Float[np.ndarray, "p m"]

    @staticmethod
    def of(settings: KernelSettings, u: np.ndarray, count: int, landmarks: int, seed: int) -> "KernelMap":
        """Up to `count` functions, of mean square one at the landmarks, which are drawn from the contexts."""
        axes = settings.axes / settings.scale
        places = np.random.default_rng(seed).permutation(len(u))[:landmarks]
        points = u[places] @ axes
        matrix = kernel_profile(settings.kernel, squared_distances(points, points))
        values, vectors = np.linalg.eigh(matrix)
        kept = np.flatnonzero(values > _VISIBLE * values[-1])[::-1][:count]
        table = vectors[:, kept] / values[kept] * len(points) ** 0.5
        return KernelMap(settings.kernel, settings.metric, axes, points, table)

    @staticmethod
    def tuned(u: np.ndarray, settings: KernelSettings, count: int, seed: int = 0) -> "KernelMap":
        """The constant and ``count - 1`` functions, with as many landmarks as these are worth."""
        return KernelMap.of(settings, u, count - 1, _landmarks_for(count), seed)

    def features(self, u: np.ndarray) -> Float[np.ndarray, "n m"]:
        """With the constant first."""
        phi = kernel_profile(self.kernel, squared_distances(u @ self.axes, self.landmarks)) @ self.table
        return np.concatenate([np.ones((len(u), 1)), phi], axis=1)


def _landmarks_for(count: int) -> int:
    return int(np.clip(_LANDMARKS_EACH * count, _FEWEST_LANDMARKS, _MOST_LANDMARKS))


@dataclass(frozen=True)
class _Ridge:
    """A ridge regression on functions of a kernel, with the error expected by generalised cross-validation."""

    expected: float
    settings: KernelSettings
    fitted: Float[np.ndarray, "n k"]
    outer: Float[np.ndarray, "d d"]  # the mean of the outer products of its gradients


def _ridge(rows: Responses, settings: KernelSettings, seed: int) -> _Ridge:
    found = KernelMap.of(settings, rows.u, _RIDGE_LANDMARKS, _RIDGE_LANDMARKS, seed)
    phi, middle = found.features(rows.u)[:, 1:], rows.shares @ rows.t
    centre = rows.shares @ phi
    left, values, right = _factors(rows.root * (phi - centre))
    along = left.T @ (rows.root * (rows.t - middle))
    best = (np.inf, along)
    for penalty in _PENALTIES:
        kept = values**2 / (values**2 + penalty)
        misfit = rows.spread - float(np.sum((along**2).T * (2 * kept - kept**2)))
        expected = misfit / (1 - (1 + kept.sum()) / len(rows)) ** 2 if kept.sum() < len(rows) / 2 else np.inf
        if expected < best[0]:
            best = (expected, along * (kept / values)[:, None])
    coefficients = right.T @ best[1]
    outer, z = np.zeros((len(settings.axes),) * 2), rows.u @ found.axes
    slopes = 2 * kernel_slope(settings.kernel, squared_distances(z, found.landmarks))
    for weights in (found.table @ coefficients).T:
        steep = z * (slopes @ weights)[:, None] - slopes @ (weights[:, None] * found.landmarks)
        steep = (steep @ found.axes.T) * rows.root
        outer += steep.T @ steep
    return _Ridge(best[0], settings, middle + (phi - centre) @ coefficients, outer)


def _factors(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The singular value decomposition of a tall table, by way of its square: rounding is below any noise here."""
    squares, vectors = np.linalg.eigh(table.T @ table)
    kept = squares > 1e-14 * squares[-1]
    values, vectors = np.sqrt(squares[kept]), vectors[:, kept]
    return table @ vectors / values, values, vectors.T


def _axes(outer: np.ndarray, metric: str) -> np.ndarray:
    """The axes of a metric, normalised to the trace of the isotropic one."""
    outer = outer * len(outer) / max(np.trace(outer), np.finfo(float).tiny)
    if metric == "coordinates":
        return np.diag(np.sqrt(np.diag(outer)))
    values, vectors = np.linalg.eigh(outer)
    return vectors * np.sqrt(np.maximum(values, 0.0))


def _median_distance(z: np.ndarray) -> float:
    """Between some of the places."""
    some = z[:_MEASURED]
    return float(np.sqrt(np.median(squared_distances(some[::2], some[1::2])))) or 1.0


def _best_ridge(
    rows: Responses,
    kernel: str,
    metric: str,
    axes: np.ndarray,
    scale: float | None,
    seed: int,
    ratios: Sequence[float] = _RATIOS,
) -> _Ridge:
    """The ridge regression with the scale that is expected to err least."""
    middle = _median_distance(rows.u @ axes)
    scales = [ratio * middle for ratio in ratios] if scale is None else [scale]
    found = (_ridge(rows, KernelSettings(kernel, metric, axes, one), seed) for one in scales)
    return min(found, key=lambda ridge: ridge.expected)


def fit_kernel(
    rows: Responses, kernel: str, metrics: Sequence[str], scale: float | None, seed: int
) -> tuple[dict[str, KernelSettings], np.ndarray]:
    """The settings for each metric asked for, and the mean outer product of the gradients of the isotropic fit."""
    first = _best_ridge(rows, kernel, "isotropic", np.eye(rows.u.shape[1]), scale, seed)
    rows = rows.leading(first.fitted, _MOST_COMPONENTS)
    found = {}
    for metric in metrics:
        ridge = first
        for ratios in () if metric == "isotropic" or not np.trace(first.outer) > 0 else _METRIC_ROUNDS:
            ridge = _best_ridge(rows, kernel, metric, _axes(ridge.outer, metric), scale, seed, ratios)
        found[metric] = KernelSettings(kernel, metric, ridge.settings.axes, ridge.settings.scale)
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
    fitted, held = rows.to_tune(_METRIC_ROWS)
    found, outer = fit_kernel(fitted, kernel, METRICS if metric is None else (metric,), scale, seed)
    best = None
    for settings in found.values():
        tried = _best_count(fitted, held, settings, counts, seed)
        best = tried if best is None or tried[2] < best[2] else best
    assert best is not None  # there is a metric
    if len(rows) > _METRIC_ROWS and len(counts) > 1:  # more rows are worth more functions
        fitted, held = rows.to_tune(len(rows))
        best = _best_count(fitted, held, best[0], counts, seed)
    return *best, outer


def _best_count(
    fitted: Responses, held: Responses, settings: KernelSettings, counts: Sequence[int], seed: int
) -> tuple[KernelSettings, int, float]:
    """The number of functions that errs least, and its error."""
    made = KernelMap.tuned(fitted.u, settings, max(counts), seed)
    tables = made.features(fitted.u), made.features(held.u)
    errors = nested_errors(fitted, held, tables, counts) @ held.shares
    return settings, counts[int(np.argmin(errors))], float(errors.min())


def refreshed(rows: Responses, settings: KernelSettings, seed: int = 0) -> KernelSettings:
    """Tuned settings with the metric learned once more from all rows; the scale stays the same share of distances."""
    if settings.metric == "isotropic":
        return settings
    outer = _ridge(rows, settings, seed).outer
    if not np.trace(outer) > 0:
        return settings
    axes = _axes(outer, settings.metric)
    scale = settings.scale * _median_distance(rows.u @ axes) / _median_distance(rows.u @ settings.axes)
    return KernelSettings(settings.kernel, settings.metric, axes, scale)
