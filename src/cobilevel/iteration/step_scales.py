r"""The scales of a reduced problem, from which step sizes are set when the user gives none.

Measured once at the start, on the pool or a part of it, and counted in the ledger: the largest and the smallest
curvature of the lower level (Lanczos on Hessian-vector products), and the curvature of $F_\Phi$ (power iteration on
differences of exact hypergradients). Measuring solves the lower level at ``x0``, so the run also starts there.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Key, PyTree

from .. import trees
from ..derivatives import Ledger, oracles
from ..lower import Point, solve_at
from ..programs import arithmetic, program, put
from ..reduction import Batch, Bilevel, Reduced

_MEASURING = 0x5CA1E  # folded into the key of a run for measuring, so that the draws of the run are those of the key
_ROWS = 2048  # the most rows a level is measured on
_LANCZOS, _FEW = 40, 8  # steps on the pool, and on a small batch, of which only the largest curvature matters
_LOOKS = 32  # small batches whose curvature is looked at: a step must be safe on every one
_POWER = 5  # power iterations: they find the largest curvature within some ten percent, enough for a step size
_LOOKOUTS = 4  # points along the path of steepest descent at which the curvature of F is measured
_EXHAUSTED = 1e2  # roundings of the largest entry, below which a Krylov space has nothing new to offer
_JIGGLE = 0.1  # of a random direction next to the gradient, which alone could be blind to the largest curvature
_LONGEST_STEP = 10  # times 1 + |x|: the longest first step worth taking
_ACCURACY = 0.75  # the exponent of the precision to which the lower level is solved: better than differences need
_LEAST_CONVEX = 1e2  # roundings of the largest curvature, the least that the smallest can be resolved to


class Scales(eqx.Module):
    """What the defaults of a stochastic solver need to know.

    - `smooth`: the largest curvature of the lower level on a batch, $L$; `convex`: the smallest on all, $\\mu$.
    - `bend`: the curvature of the reduced objective in ``x``; `gradient`: the size of its gradient at ``x0``.
    - `pull`: the size of the upper gradient in ``W``; `steep`: its largest rate of change, by differences (at least
      what would turn it over a length of ``1 + |W|``).
    - `epoch`: the batches of the larger pool, 1 for a stream.
    """

    smooth: Float[Array, ""]
    convex: Float[Array, ""]
    bend: Float[Array, ""]
    gradient: Float[Array, ""]
    pull: Float[Array, ""]
    steep: Float[Array, ""]
    epoch: Float[Array, ""]

    @property
    def condition(self) -> Any:
        """Of the lower level; also the number of inner steps in which it relaxes."""
        return self.smooth / self.convex

    @property
    def calm(self) -> Any:
        """Steps before a decay sets in: ten times those in which the lower level relaxes."""
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
            f"objective {float(self.bend):.3g}, measured at x0"
        )


class Start(eqx.Module):
    """Where a run begins: the scales, coefficients and adjoint, and the ledger of finding them.

    `solved`, `definite`: whether the lower level could be minimised at ``x0``, and is strongly convex there.
    """

    scales: Scales
    W: PyTree[Array]
    v: PyTree[Array]
    ledger: Ledger
    solved: Bool[Array, ""]
    definite: Bool[Array, ""]

    @staticmethod
    def plain(reduced: Bilevel) -> "Start":
        """For solvers whose step sizes are all given: the start is the user's, and nothing is measured."""
        nothing, yes = put((np.asarray(np.nan, reduced.dtype), np.asarray(True)))
        return Start(Scales(*[nothing] * 7), reduced.W0, trees.zeros(reduced.W0), Ledger.empty(), yes, yes)


def lanczos(product: Callable[[Array], Array], start: Float[Array, " n"], steps: int) -> Float[Array, " m"]:
    """Ritz values of a symmetric matrix given by its products: their ends approach those of its spectrum.

    Full reorthogonalisation; where the Krylov space is exhausted, the rest repeats the first Rayleigh quotient.
    """
    steps = min(steps, len(start))
    tiny = _EXHAUSTED * jnp.finfo(start.dtype).eps

    def advance(carry, k):
        basis, vector, alive, scale = carry
        basis = basis.at[k].set(jnp.where(alive, vector, 0))
        image = product(vector)
        alpha = vector @ image
        for _ in range(2):
            image = image - basis.T @ (basis @ image)
        beta = jnp.linalg.norm(image)
        scale = jnp.maximum(scale, jnp.abs(alpha) + beta)
        goes_on = alive & (beta > tiny * scale)
        vector = jnp.where(goes_on, image / jnp.where(goes_on, beta, 1), vector)
        return (basis, vector, goes_on, scale), (jnp.where(alive, alpha, jnp.nan), jnp.where(goes_on, beta, 0))

    unit = start / jnp.linalg.norm(start)
    empty = (jnp.zeros((steps, len(start)), start.dtype), unit, jnp.asarray(True), jnp.zeros((), start.dtype))
    _, (alpha, beta) = jax.lax.scan(advance, empty, jnp.arange(steps))
    alpha = jnp.where(jnp.isnan(alpha), alpha[0], alpha)
    return jnp.linalg.eigvalsh(jnp.diag(alpha) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1))


def _curvatures(
    reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch, key: Key[Array, ""], steps: int, ledger: Ledger
) -> tuple[Float[Array, " m"], Ledger]:
    """Ritz values of the lower Hessian on a batch, in ascending order."""
    flat, unflatten = oracles.flatten(W)

    def product(vector):
        out, _ = oracles.hessian_vector(reduced, x, W, unflatten(vector), batch, ledger)
        return oracles.flatten(out)[0]

    begin = product(jax.random.normal(key, flat.shape, flat.dtype))  # in the range: what no context sees is left out
    ritz = lanczos(product, jnp.where(jnp.linalg.norm(begin) > 0, begin, 1), steps)
    return ritz, ledger.add("hessian_vector", batch, min(steps, len(flat)) + 1)


def _unit(vector: Float[Array, " n"]) -> Float[Array, " n"]:
    return vector / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(vector.dtype).tiny)


def _unblocked(reduced: Bilevel, x: Float[Array, " dx"], slope: Float[Array, " dx"]) -> Float[Array, " dx"]:
    """A gradient without what the bounds block: a huge slope against one says nothing of the steps to take."""
    return jnp.where(reduced.problem.bounds.flat().free(x, slope), slope, 0)


class _Lookout(eqx.Module):
    """At a point on the way downhill: the lower solution and the hypergradient there, and how fast that changes.

    - `along`: the direction in which it changed most, so far; `largest`: by how much.
    - `bend`: the largest curvature of ``F`` at the points before.
    """

    x: Float[Array, " dx"]
    W: PyTree
    gradient: Float[Array, " dx"]
    sound: Bool[Array, ""]
    along: Float[Array, " dx"]
    largest: Float[Array, ""]
    bend: Float[Array, ""]


def _bend(
    reduced: Bilevel, target: Float[Array, ""], key: Key[Array, ""], ledger: Ledger
) -> tuple[Point, Float[Array, ""], Ledger]:
    """The problem at ``x0``, solved, and the largest curvature of ``F`` at a few points from there downhill.

    At each the hypergradient is found first; then its largest rate of change, by power iteration on differences.
    """
    bounds = reduced.problem.bounds.flat()
    x0 = ravel_pytree(reduced.project(reduced.x0))[0]
    eps, tiny, none = jnp.finfo(x0.dtype).eps, jnp.finfo(x0.dtype).tiny, jnp.zeros((), x0.dtype)
    jiggle = _JIGGLE * _unit(jax.random.normal(key, x0.shape, x0.dtype))

    def ahead(s: _Lookout) -> Float[Array, " dx"]:
        reach = eps ** (1 / 3) * (1 + jnp.linalg.norm(s.x))
        there, back = (bounds.project(s.x + step * s.along) for step in (reach, -reach))
        return jnp.where(jnp.linalg.norm(there - s.x) > reach / 2, there, back)

    def arrived(s: _Lookout, at: Point) -> _Lookout:
        along = _unit(_unblocked(reduced, s.x, at.gradient)) + jiggle
        along = _unit(jnp.where(bounds.fixed(), 0, along))
        return replace(s, W=at.W, gradient=at.gradient, sound=at.sound, along=along, largest=none)

    def compared(s: _Lookout, at: Point) -> _Lookout:
        change = jnp.where(bounds.fixed(), 0, at.gradient - s.gradient)
        change = change / jnp.maximum(jnp.linalg.norm(at.x - s.x), tiny)
        size = jnp.where(at.sound & s.sound, jnp.linalg.norm(change), 0)
        return replace(s, along=jnp.where(size > 0, _unit(change), s.along), largest=jnp.maximum(s.largest, size))

    def onward(s: _Lookout) -> _Lookout:
        downhill = _unblocked(reduced, s.x, s.gradient)
        bend = jnp.maximum(s.largest, jnp.linalg.norm(downhill) / (_LONGEST_STEP * (1 + jnp.linalg.norm(s.x))))
        bend = jnp.maximum(jnp.where(bend > 0, bend, 1), s.bend)
        return replace(s, x=jnp.where(s.sound, bounds.project(s.x - downhill / bend), s.x), bend=bend)

    def look(carry, number):
        s, ledger = carry
        first, last = number == 0, number == _POWER
        point, ledger = solve_at(reduced, jnp.where(first, s.x, ahead(s)), s.W, target, ledger)
        s = trees.where(first, arrived(s, point), compared(s, point))
        return (trees.where(last, onward(s), s), ledger), point

    start = _Lookout(x0, reduced.W0, jnp.zeros_like(x0), jnp.asarray(False), jnp.zeros_like(x0), none, none)
    numbers = jnp.tile(jnp.arange(_POWER + 1), _LOOKOUTS)
    (end, ledger), points = jax.lax.scan(look, (start, ledger), numbers)
    return jax.tree.map(lambda a: a[0], points), end.bend, ledger


def _steepness(
    reduced: Bilevel, x: PyTree, W: PyTree, key: Key[Array, ""], ledger: Ledger
) -> tuple[Float[Array, ""], Float[Array, ""], Ledger]:
    """The size of the upper gradient in ``W``, and its largest rate of change by power iteration on differences."""
    flat, unflatten = oracles.flatten(W)
    eps, tiny = jnp.finfo(flat.dtype).eps, jnp.finfo(flat.dtype).tiny
    (_, _, pull), ledger = oracles.upper_gradients(reduced, x, W, reduced.upper_pool, ledger)

    def stiffen(carry, _):
        along, largest, ledger = carry
        reach = eps ** (1 / 3) * (1 + trees.norm(W)) / jnp.maximum(trees.norm(along), tiny)
        ahead = trees.step(W, -reach, along)
        (_, _, there), ledger = oracles.upper_gradients(reduced, x, ahead, reduced.upper_pool, ledger)
        change = trees.scale(1 / reach, trees.sub(there, pull))
        return (change, jnp.maximum(largest, trees.norm(change) / jnp.maximum(trees.norm(along), tiny)), ledger), None

    size = trees.norm(pull)
    noise = jax.random.normal(key, flat.shape, flat.dtype) / len(flat) ** 0.5
    towards = trees.add(pull, unflatten(noise * jnp.where(size > 0, size, 1)))
    carry = (towards, jnp.zeros((), flat.dtype), ledger)
    (_, steep, ledger), _ = jax.lax.scan(stiffen, carry, None, length=_POWER)
    steep = jnp.maximum(steep, size / (1 + trees.norm(W)))
    return size, jnp.where(steep > 0, steep, 1), ledger


def _solved_start(
    part: Bilevel, key: Key[Array, ""], ledger: Ledger
) -> tuple[Point, PyTree, PyTree, Float[Array, ""], Ledger]:
    """The problem at ``x0``, coefficients and adjoint there, and the curvature of ``F``."""
    slope, ledger = oracles.lower_gradient(part, part.project(part.x0), part.W0, part.lower_pool, ledger)
    target = jnp.finfo(part.dtype).eps ** _ACCURACY * trees.norm(slope)
    if isinstance(part, Reduced) and part.deficient:
        # some coefficients are never seen (an empty cell): the exact solves need coordinates without them
        probe = part.whitened()
        assert probe.coordinates is not None
        here, bend, ledger = _bend(probe, target, key, ledger)
        found, adjoint = probe.coordinates.restore(here.W), probe.coordinates.direction(here.adjoint)
    else:
        here, bend, ledger = _bend(part, target, key, ledger)
        found, adjoint = here.W, here.adjoint
    W = trees.where(here.solved, found, part.W0)
    return here, W, trees.where(here.sound, adjoint, trees.zeros(part.W0)), bend, ledger


@program
def measure(reduced: Bilevel, key: Key[Array, ""], batch: int) -> Start:
    """The scales of a problem for batches of a size, and a start."""
    keys = jax.random.split(jax.random.fold_in(key, _MEASURING), 5)
    sources = reduced.lower_source, reduced.upper_source
    part = replace(
        reduced, lower_source=sources[0].at_most(keys[0], _ROWS), upper_source=sources[1].at_most(keys[1], _ROWS)
    )
    x, pool = reduced.project(reduced.x0), part.lower_pool
    here, W, v, bend, ledger = _solved_start(part, keys[2], Ledger.empty())

    def spectrum(ledger, at):
        values, ledger = _curvatures(part, x, at, pool, keys[3], _LANCZOS, ledger)
        return ledger, values

    ledger, (ritz, before) = jax.lax.scan(spectrum, ledger, jax.tree.map(lambda *a: jnp.stack(a), W, reduced.W0))

    def look(ledger, number):
        small = reduced.lower_source.batch(keys[4], number, batch, False)
        values, ledger = _curvatures(reduced, x, W, small, keys[3], _FEW, ledger)
        return ledger, values[-1]

    ledger, small = jax.lax.scan(look, ledger, jnp.arange(_LOOKS, dtype=jnp.uint32))
    smooth = jnp.maximum(jnp.maximum(ritz[-1], before[-1]), jnp.max(small))
    smooth = jnp.where(smooth > 0, smooth, 1)
    pull, steep, ledger = _steepness(part, x, W, keys[2], ledger)
    scales = Scales(
        smooth=smooth,
        convex=jnp.maximum(ritz[0], _LEAST_CONVEX * jnp.finfo(reduced.dtype).eps * smooth),
        bend=bend,
        gradient=jnp.linalg.norm(_unblocked(reduced, here.x, here.gradient)),
        pull=pull,
        steep=steep,
        epoch=jnp.asarray(max((source.rows or batch) / batch for source in sources), reduced.dtype),
    )
    return Start(scales, W, v, ledger, here.solved, here.definite)
