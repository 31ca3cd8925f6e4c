"""Functions of a kernel fitted to responses: its metric from gradients of a ridge regression, its scale, how many."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from ..basis import METRICS, KernelFeatures, kernel_profile, kernel_slope, squared_distances
from ..programs import put
from .fits import Responses, nested_errors

_RIDGE_LANDMARKS = 256  # of the regressions that find the metric
_RATIOS = (0.7, 1.4, 2.8)  # scales tried, in median distances of landmarks
_PENALTIES = 10.0 ** np.arange(-6, 1.6, 0.5)  # tried, relative to the mean square of a function
_FEWEST_LANDMARKS, _MOST_LANDMARKS = 300, 512  # four for each function kept, within these
_VISIBLE = 1e-8  # eigenvalue, relative to the largest: below, functions drown in rounding
METRIC_ROWS = 4096  # at most, while metrics are compared


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

    kernel: str
    metric: str
    axes: Float[np.ndarray, "d k"]
    landmarks: Float[np.ndarray, "p k"]
    table: Float[np.ndarray, "p m"]

    @staticmethod
    def of(
        settings: KernelSettings, u: np.ndarray, count: int, seed: int = 0, landmarks: int | None = None
    ) -> "KernelMap":
        """The constant and up to ``count - 1`` functions, of mean square one at the landmarks, which are drawn from the
        contexts."""
        if landmarks is None:
            landmarks = int(np.clip(4 * count, _FEWEST_LANDMARKS, _MOST_LANDMARKS))
        axes = settings.axes / settings.scale
        points = u[np.random.default_rng(seed).permutation(len(u))[:landmarks]] @ axes
        values, vectors = np.linalg.eigh(kernel_profile(settings.kernel, squared_distances(points, points)))
        kept = np.flatnonzero(values > _VISIBLE * values[-1])[::-1][: count - 1]
        table = vectors[:, kept] / values[kept] * len(points) ** 0.5
        return KernelMap(settings.kernel, settings.metric, axes, points, table)

    def features(self, u: np.ndarray) -> Float[np.ndarray, "n m"]:
        """With the constant first."""
        phi = kernel_profile(self.kernel, squared_distances(u @ self.axes, self.landmarks)) @ self.table
        return np.concatenate([np.ones((len(u), 1)), phi], axis=1)

    def kept_in(self, recipe: KernelFeatures) -> KernelFeatures:
        """A recipe with these functions."""
        axes, landmarks, table = put(tuple(np.asarray(part) for part in (self.axes, self.landmarks, self.table)))
        return replace(recipe, axes=axes, landmarks=landmarks, table=table)


@dataclass(frozen=True)
class _Ridge:
    """A ridge regression on functions of a kernel, with the error expected by generalised cross-validation."""

    expected: float
    settings: KernelSettings
    fitted: Float[np.ndarray, "n k"]
    outer: Float[np.ndarray, "d d"]  # the mean of the outer products of its gradients


def _ridge(rows: Responses, settings: KernelSettings, seed: int) -> _Ridge:
    made = KernelMap.of(settings, rows.u, _RIDGE_LANDMARKS + 1, seed, _RIDGE_LANDMARKS)
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
) -> tuple[dict[str, KernelSettings], np.ndarray]:
    """The settings for each metric asked for, and the mean outer product of the gradients of the isotropic fit."""

    def best(rows: Responses, metric: str, axes: np.ndarray, ratios: Sequence[float]) -> _Ridge:
        """The regression with the scale that is expected to err least."""
        middle = _median_distance(rows.u @ axes)
        scales = [ratio * middle for ratio in ratios] if scale is None else [scale]
        tried = (_ridge(rows, KernelSettings(kernel, metric, axes, one), seed) for one in scales)
        return min(tried, key=lambda ridge: ridge.expected)

    first = best(rows, "isotropic", np.eye(rows.u.shape[1]), _RATIOS)
    rows = rows.leading(first.fitted)
    found = {}
    for metric in metrics:
        ridge = first
        learned = metric != "isotropic" and np.trace(first.outer) > 0
        for ratios in ((1.0,), _RATIOS[:2]) if learned else ():  # gradients of a fit give the metric of the next
            ridge = best(rows, metric, _axes(ridge.outer, metric), ratios)
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
    if settings.metric == "isotropic":
        return settings
    outer = _ridge(rows, settings, seed).outer
    if not np.trace(outer) > 0:
        return settings
    axes = _axes(outer, settings.metric)
    scale = settings.scale * _median_distance(rows.u @ axes) / _median_distance(rows.u @ settings.axes)
    return replace(settings, axes=axes, scale=scale)
