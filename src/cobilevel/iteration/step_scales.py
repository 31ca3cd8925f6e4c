r"""The scales of a reduced problem, from which step sizes are set when the user gives none.

Measured once at the start, on the host, on the pool or a part of it, and counted in the ledger: the largest and the
smallest curvature of the lower level (eigenvalues of its Hessian, or Lanczos on products with it), and the curvature of
$F_\Phi$ (power iteration on differences of exact hypergradients). All at ``x0`` and at a few points from there
downhill, where the run will go: a barrier is flat at one and steep at the other. Measuring solves the lower level at
``x0``, so the run also starts there.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from ..derivatives import Expansions, HostLedger, Ledger, galerkin
from ..ground import Held, arithmetic, put, shaped_like, trees
from ..lower import SOLVED, Point, lower_size, solve_at
from ..problem import Bounds
from ..reduction import Batch, Bilevel, Reduced, Source, Table, Turn


class Scales(eqx.Module):
    """What the defaults of a stochastic solver need to know.

    - `smooth`: the largest curvature of the lower level on a batch, $L$; `convex`: the smallest on all, $\\mu$.
    - `bend`: the curvature of the reduced objective in ``x``; `gradient`: the size of its gradient at ``x0``.
    - `pull`: the size of the upper gradient in ``W``; `steep`: its largest rate of change, by differences (at least
      what would turn it over a length of ``1 + |W|``).
    - `epoch`: the batches of the larger pool, 1 for a stream.
    """

    smooth: Float[Held, ""]
    convex: Float[Held, ""]
    bend: Float[Held, ""]
    gradient: Float[Held, ""]
    pull: Float[Held, ""]
    steep: Float[Held, ""]
    epoch: Float[Held, ""]

    @property
    def condition(self) -> Any:
        """The condition number of the lower level; also the number of inner steps in which it converges."""
        return self.smooth / self.convex

    @property
    def calm(self) -> Any:
        """Steps before a decay begins: ten times those in which the lower level converges."""
        return 10 * self.condition

    @property
    def inner(self) -> Any:
        """The largest step that is safe on every batch."""
        return 1 / self.smooth

    def outer(self, loops: Any = 1) -> Any:
        """Half the stable step of ``x``, or less: what `loops` inner steps per outer one can follow."""
        return arithmetic(loops, self).minimum(1 / 2, loops / self.condition) / self.bend

    def words(self) -> str:
        """The curvatures, for ``solution.choices``."""
        return (
            f"curvature of the lower level {float(self.convex):.3g} to {float(self.smooth):.3g}, of the upper "
            f"objective {float(self.bend):.3g}, measured downhill from x0"
        )


class Start(eqx.Module):
    """Where a run begins: the scales, coefficients and adjoint, and the ledger of finding them.

    `solved`, `definite`: whether the lower level could be minimised at ``x0``, and is strongly convex there.
    """

    scales: Scales
    W: PyTree[Held]
    v: PyTree[Held]
    ledger: Ledger
    solved: Bool[Held, ""]
    definite: Bool[Held, ""]

    @staticmethod
    def plain(reduced: Bilevel) -> "Start":
        """For solvers whose step sizes are all given: the start is the user's, and nothing is measured."""
        nothing, yes = put((np.asarray(np.nan, reduced.dtype), np.asarray(True)))
        return Start(Scales(*[nothing] * 7), reduced.W0, trees.zeros(reduced.W0), Ledger.empty(), yes, yes)


def lanczos(
    product: Callable[[np.ndarray], np.ndarray], start: Float[np.ndarray, " n"], steps: int = 40
) -> Float[np.ndarray, " k"]:
    """Ritz values of a symmetric matrix given by its products: their ends approach those of its spectrum. Fully
    reorthogonalised; fewer where the Krylov space is exhausted but for rounding."""
    vector, basis, alpha, beta, scale = start / np.linalg.norm(start), [], [], [], 0.0
    for _ in range(min(steps, len(start))):
        basis.append(vector)
        image = product(vector)
        alpha.append(float(vector @ image))
        space = np.stack(basis)
        for _ in range(2):
            image = image - space.T @ (space @ image)
        beta.append(float(np.linalg.norm(image)))
        scale = max(scale, abs(alpha[-1]) + beta[-1])
        if not beta[-1] > len(start) * np.finfo(float).eps * scale:
            break
        vector = image / beta[-1]
    return np.linalg.eigvalsh(np.diag(alpha) + np.diag(beta[:-1], 1) + np.diag(beta[:-1], -1))


def _spectrum(hessian: np.ndarray, turn: Turn | None) -> np.ndarray:
    """Eigenvalues of a Hessian in the coordinates that steps are taken in, in ascending order."""
    if turn is not None:
        matrix = np.asarray(turn.matrix, float)
        hessian = matrix.T @ hessian @ matrix
    return np.sort(np.linalg.eigvalsh(hessian), axis=None)


def _curvatures(
    at: Expansions, x: np.ndarray, W: np.ndarray, rng: np.random.Generator, turn: Turn | None = None, **steps: int
) -> np.ndarray:
    """Eigenvalues of the lower Hessian, or Ritz values where it is not formed, in ascending order."""
    if at.formed:
        values = _spectrum(at.lower(x, W).hessian, turn)
        return values if np.isfinite(values).all() else np.zeros(1)
    product = lambda v: at.hessian_product(x, W, v.reshape(W.shape)).reshape(-1)
    begin = product(rng.standard_normal(W.size))  # in the range: what no context sees is left out
    return lanczos(product, begin if np.linalg.norm(begin) > 0 else np.ones(W.size), **steps)


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), np.finfo(float).tiny)


def _largest_rate(rate: Callable[[np.ndarray], np.ndarray], along: np.ndarray, iterations: int = 5) -> float:
    """The largest rate of change of a gradient, by power iteration, within some ten percent; `rate` gives the one along
    a unit vector, a vector."""
    largest = 0.0
    for _ in range(iterations):
        change = rate(_unit(along))
        size = float(np.linalg.norm(change))
        along, largest = change if size > 0 else along, max(largest, size)
    return largest


def _downhill(at: Expansions, point: Point) -> Float[np.ndarray, " dx"]:
    """The gradient without what the bounds block: a huge slope against one says nothing of the steps to take."""
    return np.where(Bounds(*at.bounds).free(point.x, point.gradient), point.gradient, 0.0)


def _bend(
    at: Expansions, target: float, rng: np.random.Generator, lookouts: int = 4, longest: float = 10.0
) -> tuple[list[Point], float]:
    """The problem solved at ``x0`` and at a few points from there downhill, and the largest curvature of ``F`` there.

    At each the hypergradient is found first; then its largest rate of change, by power iteration on differences. It is
    at least what keeps the first step below `longest` times ``1 + |x|``.
    """
    x, movable = np.clip(at.start, *at.bounds), at.bounds[0] < at.bounds[1]
    jiggle = 0.1 * _unit(rng.standard_normal(len(x)))  # the gradient alone may be blind to the largest curvature

    def rate(here: Point, along: np.ndarray) -> np.ndarray:
        reach = at.eps ** (1 / 3) * (1 + np.linalg.norm(here.x))
        ahead, back = (np.clip(here.x + step * along, *at.bounds) for step in (reach, -reach))
        place = ahead if np.linalg.norm(ahead - here.x) > reach / 2 else back
        there = solve_at(at, place, here.coefficients_at(place), target)
        change = np.where(movable & there.sound & here.sound, there.gradient - here.gradient, 0.0)
        return change / max(np.linalg.norm(place - here.x), np.finfo(float).tiny)

    points, bend = [solve_at(at, x, at.table(at.reduced.W0), target)], 0.0
    for lookout in range(lookouts):
        here = points[-1]
        if lookout:
            here = solve_at(at, x, here.coefficients_at(x), target)
            points.append(here)
        downhill = _downhill(at, here)
        largest = _largest_rate(partial(rate, here), np.where(movable, _unit(downhill) + jiggle, 0.0))
        least = float(np.linalg.norm(downhill)) / (longest * (1 + np.linalg.norm(x)))
        bend = max(bend, max(largest, least) or 1.0) if np.isfinite(least) else bend or 1.0
        x = np.clip(x - downhill / bend, *at.bounds) if here.sound else x
    return points, bend


def _steepness(
    at: Expansions, x: np.ndarray, W: np.ndarray, rng: np.random.Generator, turn: Turn | None
) -> tuple[float, float]:
    """The size of the upper gradient in ``W``, and its largest rate of change by power iteration on differences."""
    matrix = np.eye(1) if turn is None else np.asarray(turn.matrix, float)
    image = lambda matrix, table: table if turn is None else (matrix @ table.reshape(-1)).reshape(table.shape)
    back, forth = partial(image, matrix.T), partial(image, matrix)
    pull = back(at.upper(x, W).d2)
    size, reach = float(np.linalg.norm(pull)), at.eps ** (1 / 3) * (1 + np.linalg.norm(W))
    along = pull + rng.standard_normal(W.shape) / W.size**0.5 * (size or 1.0)
    steep = _largest_rate(lambda along: (back(at.upper(x, W + reach * forth(along)).d2) - pull) / reach, along)
    return size, max(steep, size / (1 + float(np.linalg.norm(W)))) or 1.0


@eqx.filter_jit
def _batches(source: Source, key: Key[Array, ""], count: int, size: int) -> Any:
    return jax.vmap(lambda number: source.batch(key, number, size, False))(jnp.arange(count, dtype=jnp.uint32))


def _drawn(source: Source, key: Key[Array, ""], count: int, size: int, rng: np.random.Generator) -> Batch:
    """The rows of random batches, one after the other, with replacement; of a table on the host."""
    if isinstance(source, Table):
        picked = rng.integers(len(source.table), size=count * size)
        return jax.tree.map(lambda a: np.asarray(a)[picked], source.table)
    drawn = replace(_batches(source, key, count, size), count=None)
    return jax.tree.map(lambda a: np.asarray(a).reshape(-1, *a.shape[2:]), drawn)


def _part(source: Source, rows: int, rng: np.random.Generator, key: Key[Array, ""]) -> Table:
    """A level's pool if it has at most `rows` rows, else a random part of it of that size."""
    small = source.rows is not None and source.rows <= rows
    return source.tabled() if small else Table(_drawn(source, key, 1, rows, rng))


def _largest_on_batches(
    reduced: Bilevel, x: np.ndarray, W: np.ndarray, rows: Batch, size: int, rng: np.random.Generator
) -> tuple[float, Counter]:
    """The largest curvature of the lower level on any batch looked at, and the cost of measuring it."""
    parts = [slice(begin, begin + size) for begin in range(0, len(rows), size)]
    at = Expansions(reduced.with_pools(rows, rows))
    if not at.formed:
        batches = [jax.tree.map(lambda a, part=part: a[part], rows) for part in parts]
        each = [Expansions(reduced.with_pools(batch, batch)) for batch in batches]
        most = max(float(_curvatures(one, x, W, rng, steps=8)[-1]) for one in each)  # the upper end, roughly
        return most, sum((one.spent for one in each), Counter())
    hessians, (pool,), largest = at.lower_rows(x, W).hessian, at.lower_pools, 0.0
    for part in parts:
        weights = len(parts) * pool.shares[part]
        hessian = galerkin(np.asarray(pool.features[part], float), hessians[part] * weights[:, None, None])
        if np.isfinite(hessian).all():
            largest = max(largest, float(_spectrum(hessian, reduced.turn)[-1]))
    return largest, at.spent


def _some_rows(reduced: Any, rows: int, rng: np.random.Generator, key: Key[Array, ""]) -> Any:
    """The problem on at most `rows` rows of a level, and in the weights of its features."""
    sources = reduced.lower_source, reduced.upper_source
    lower = _part(sources[0], rows, rng, key)
    upper = lower if sources[0] is sources[1] and sources[0].rows is not None else _part(sources[1], rows, rng, key)
    return replace(reduced, lower_source=lower, upper_source=upper, W0=reduced.weights(reduced.W0), turn=None)


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a lower level without minimum
def turned(reduced: Reduced, rows: int = 2048) -> Reduced:
    """With a barrier, the same problem from the best of a few points downhill from ``x0``, in coordinates in which the
    Hessian of the lower level is the identity there.

    Where a bound binds, the barrier is hundreds of times as steep as ``g``, and elsewhere it is flat: no length of step
    suits both, and no coordinates suit two points between which bounds come to bind.
    """
    if reduced.constrained is None or reduced.constrained.smoothing is None:
        return reduced
    rng, start = np.random.default_rng(0), jax.random.key(0)
    at = Expansions(_some_rows(reduced, rows, rng, start))
    if not at.formed:
        return reduced
    W0 = at.table(reduced.W0)
    points, _ = _bend(at, at.eps**SOLVED * lower_size(at, np.clip(at.start, *at.bounds), W0), rng)
    if not all(point.sound for point in points):
        return reduced
    best = min(points, key=lambda point: point.value)
    root = np.linalg.cholesky(best.hessian)
    numbers = np.linalg.inv(root).T, root.T, np.linalg.norm(_downhill(at, points[0]))
    turn = Turn(*put(tuple(np.asarray(number, reduced.dtype) for number in numbers)), tuple(sorted(at.spent.items())))
    problem = reduced.problem.at(put(shaped_like(reduced.x0, best.x, reduced.dtype)))
    return replace(reduced, problem=problem, turn=turn, W0=turn.of(turn.inverse, put(at.coefficients(best.W))))


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a lower level without minimum
def measure(reduced: Bilevel, key: Key[Array, ""], batch: int, rows: int = 2048, looks: int = 32) -> Start:
    """The scales of a problem for batches of a size, and a start; from at most `rows` rows of a level. A step must be
    safe on each of the batches looked at."""
    # with a number of its own, so that the draws of the run are others
    rng = np.random.default_rng([*np.asarray(jax.random.key_data(key)).ravel(), 0x5CA1E])
    sources, turn = (reduced.lower_source, reduced.upper_source), reduced.turn
    part = _some_rows(reduced, rows, rng, key)
    at = Expansions(part)
    here, (W, *others), v, bend, spent = _solved_start(part, at, rng)
    places = [(here.x, at.table(part.W0)), (here.x, W), *others]
    ends = [_curvatures(at, x, place, rng, turn) for x, place in places]
    steepest = places[int(np.argmax([values[-1] for values in ends[1:]])) + 1]
    small, looked = _largest_on_batches(reduced, *steepest, _drawn(sources[0], key, looks, batch, rng), batch, rng)
    smooth = max(small, *(values[-1] for values in ends))
    smooth = smooth if smooth > 0 else 1.0
    pull, steep = _steepness(at, here.x, W, rng, turn)
    convex = max(min(values[0] for values in ends[1:]), W.size * at.eps * smooth)  # less cannot be resolved
    epoch = max((source.rows or batch) / batch for source in sources)
    gradient = np.linalg.norm(_downhill(at, here)) if turn is None else turn.first
    measured = (smooth, convex, bend, gradient, pull, steep, epoch)
    scales = Scales(*(np.asarray(value, reduced.dtype) for value in measured))
    before = Counter() if turn is None else Counter(dict(turn.spent))
    ledger = HostLedger.of(at.spent + spent + looked + before).in_programs()
    W, v = (at.coefficients(table) for table in (W, v))
    W, v = (W, v) if turn is None else (turn.of(turn.inverse, one) for one in (W, v))
    parts = scales, W, v, ledger, np.asarray(here.solved), np.asarray(here.definite)
    return Start(*put(parts))


def _solved_start(
    part: Bilevel, at: Expansions, rng: np.random.Generator
) -> tuple[Point, list[Any], np.ndarray, float, Any]:
    """The problem at ``x0``, coefficients there (with those at points downhill), the adjoint, the curvature of ``F``,
    and what that took elsewhere."""
    start = at.table(part.W0)
    target = at.eps**SOLVED * lower_size(at, np.clip(at.start, *at.bounds), start)
    if isinstance(part, Reduced) and part.deficient and part.coordinates is None:
        # some coefficients are never seen (an empty cell): the exact solves need coordinates without them
        probe = part.whitened()
        assert probe.coordinates is not None
        other, coordinates = Expansions(probe), probe.coordinates
        points, bend = _bend(other, target, rng)
        table = lambda W: at.table(coordinates.restore(other.coefficients(W)))
        v = at.table(coordinates.direction(other.coefficients(np.nan_to_num(points[0].adjoint))))
        spent = other.spent
    else:
        points, bend = _bend(at, target, rng)
        table, v, spent = lambda W: W, points[0].adjoint, Counter()
    here, *downhill = points
    W = table(here.W)
    W = W if here.solved and np.isfinite(W).all() else start
    found = [W, *((point.x, table(point.W)) for point in downhill if point.sound)]
    return here, found, v if here.sound else np.zeros_like(start), bend, spent
