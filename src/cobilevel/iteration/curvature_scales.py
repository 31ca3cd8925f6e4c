r"""The scales of a reduced problem, from which step sizes are set when the user gives none.

Measured once at the start, on the pool or a part of it, and counted in the ledger: the largest and the smallest
curvature of the lower level (Lanczos on Hessian-vector products), and the curvature of $F_\Phi$ (power iteration on
differences of exact hypergradients). Measuring solves the lower level at ``x0``, so the run also starts there.
"""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from .. import trees
from ..derivatives import oracles
from ..derivatives.ledger import Ledger
from ..lower.reduced_at_x import Point, solve_at
from ..reduction.batches import Batch, Source, Table
from ..reduction.reduced import Reduced

_ROWS = 2048  # the most rows a level is measured on


_LANCZOS, _FEW = 40, 8  # steps on the pool, and on a small batch


_LOOKS = 32  # small batches whose curvature is looked at


_POWER = 5


_LOOKOUTS = 4  # points along the path of steepest descent at which the curvature of F is measured


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
    def condition(self) -> Float[Array, ""]:
        """Of the lower level; also the number of inner steps in which it relaxes."""
        return self.smooth / self.convex

    @property
    def inner(self) -> Float[Array, ""]:
        """The largest step that is safe on every batch."""
        return 1 / self.smooth

    def outer(self, loops: Any = 1) -> Float[Array, ""]:
        """Half the stable step of ``x``, or less: what `loops` inner steps per outer one can follow."""
        return jnp.minimum(1 / 2, loops / self.condition) / self.bend

    def words(self) -> str:
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
    def plain(reduced: Reduced) -> "Start":
        """For solvers whose step sizes are all given: the start is the user's, and nothing is measured."""
        nothing = jnp.asarray(jnp.nan, jax.tree.leaves(reduced.W0)[0].dtype)
        yes = jnp.asarray(True)
        return Start(Scales(*[nothing] * 7), reduced.W0, trees.zeros(reduced.W0), Ledger.empty(), yes, yes)


def lanczos(product: Any, start: Float[Array, " n"], steps: int) -> Float[Array, " m"]:
    """Ritz values of a symmetric matrix given by its products: their ends approach those of its spectrum.

    Full reorthogonalisation; where the Krylov space is exhausted, the rest repeats the first Rayleigh quotient.
    """
    steps = min(steps, len(start))
    tiny = 1e2 * jnp.finfo(start.dtype).eps

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


def _curvatures(reduced: Reduced, x: PyTree, W: PyTree, batch: Batch, key: Array, steps: int, ledger: Ledger):
    flat, unflatten = oracles.flatten(W)

    def product(vector):
        out, _ = oracles.hessian_vector(reduced, x, W, unflatten(vector), batch, ledger)
        return oracles.flatten(out)[0]

    begin = product(jax.random.normal(key, flat.shape, flat.dtype))  # in the range: what no context sees is left out
    ritz = lanczos(product, jnp.where(jnp.linalg.norm(begin) > 0, begin, 1), steps)
    return ritz, ledger.add("hessian_vector", batch, min(steps, len(flat)) + 1)


def _part(source: Source, key: Array) -> Source:
    """The pool where it is small, else a large batch of it."""
    if source.rows is not None and source.rows <= _ROWS:
        return Table(source.pool())
    return Table(replace(source.draw(key, _ROWS), count=None))


def _unit(vector: Float[Array, " n"]) -> Float[Array, " n"]:
    return vector / jnp.maximum(jnp.linalg.norm(vector), jnp.finfo(vector.dtype).tiny)


def _free(reduced: Reduced, x: Float[Array, " dx"], slope: Float[Array, " dx"]) -> Float[Array, " dx"]:
    """A gradient without what the bounds block: a huge slope against one says nothing of the steps to take."""
    lo, hi = (ravel_pytree(side)[0] for side in reduced.problem.x_bounds)
    return slope * ~((x <= lo) & (slope > 0) | (x >= hi) & (slope < 0) | (lo == hi))


def _bend(reduced: Reduced, target: Any, key: Array, ledger: Ledger) -> tuple[Point, Float[Array, ""], Ledger]:
    """The problem at ``x0``, solved, and the largest curvature of ``F`` at a few points from there downhill."""
    x0 = ravel_pytree(reduced.project(reduced.x0))[0]
    lo, hi = (ravel_pytree(side)[0] for side in reduced.problem.x_bounds)
    eps, tiny = jnp.finfo(x0.dtype).eps, jnp.finfo(x0.dtype).tiny

    def explore(carry, _):
        """At one point: the hypergradient, and its largest rate of change by power iteration; then a step along it."""
        x, W, before, ledger = carry
        here, ledger = solve_at(reduced, x, W, target, ledger)
        downhill = _free(reduced, x, here.gradient)

        def power(carry, _):
            direction, largest, ledger = carry
            reach = eps ** (1 / 3) * (1 + jnp.linalg.norm(x))
            ahead = jnp.clip(x + reach * direction, lo, hi)
            ahead = jnp.where(jnp.linalg.norm(ahead - x) > reach / 2, ahead, jnp.clip(x - reach * direction, lo, hi))
            there, ledger = solve_at(reduced, ahead, here.W, target, ledger)
            change = (lo < hi) * (there.gradient - here.gradient) / jnp.maximum(jnp.linalg.norm(ahead - x), tiny)
            size = jnp.where(there.sound & here.sound, jnp.linalg.norm(change), 0)
            return (jnp.where(size > 0, _unit(change), direction), jnp.maximum(largest, size), ledger), None

        jiggle = 0.1 * _unit(jax.random.normal(key, x.shape, x.dtype))
        first = (_unit((lo < hi) * (_unit(downhill) + jiggle)), jnp.zeros((), x.dtype), ledger)
        (_, bend, ledger), _ = jax.lax.scan(power, first, None, length=_POWER)
        # a first step of ten times x is enough
        bend = jnp.maximum(bend, jnp.linalg.norm(downhill) / (10 * (1 + jnp.linalg.norm(x))))
        bend = jnp.maximum(jnp.where(bend > 0, bend, 1), before)
        onward = jnp.where(here.sound, jnp.clip(x - downhill / bend, lo, hi), x)
        return (onward, here.W, bend, ledger), here

    start = (x0, reduced.W0, jnp.zeros((), x0.dtype), ledger)
    (_, _, bend, ledger), points = jax.lax.scan(explore, start, None, length=_LOOKOUTS)
    return jax.tree.map(lambda a: a[0], points), bend, ledger


def _steepness(reduced: Reduced, x: PyTree, W: PyTree, key: Array, ledger: Ledger):
    """The size of the upper gradient in ``W``, and its largest rate of change by power iteration on differences."""
    flat, unflatten = oracles.flatten(W)
    eps, tiny = jnp.finfo(flat.dtype).eps, jnp.finfo(flat.dtype).tiny
    (_, _, pull), ledger = oracles.upper_gradients(reduced, x, W, reduced.upper_pool, ledger)

    def stiffen(carry, _):
        along, largest, ledger = carry
        reach = eps ** (1 / 3) * (1 + trees.norm(W)) / jnp.maximum(trees.norm(along), tiny)
        beside = trees.step(W, -reach, along)
        (_, _, there), ledger = oracles.upper_gradients(reduced, x, beside, reduced.upper_pool, ledger)
        change = trees.scale(1 / reach, trees.sub(there, pull))
        return (change, jnp.maximum(largest, trees.norm(change) / jnp.maximum(trees.norm(along), tiny)), ledger), None

    size = trees.norm(pull)
    noise = jax.random.normal(key, flat.shape, flat.dtype) / len(flat) ** 0.5
    towards = trees.add(pull, unflatten(noise * jnp.where(size > 0, size, 1)))
    carry = (towards, jnp.zeros((), flat.dtype), ledger)
    (_, steep, ledger), _ = jax.lax.scan(stiffen, carry, None, length=_POWER)
    steep = jnp.maximum(steep, size / (1 + trees.norm(W)))
    return size, jnp.where(steep > 0, steep, 1), ledger


@eqx.filter_jit
def measure(reduced: Reduced, key: Array, batch: int) -> Start:
    """The scales of a problem for batches of a size, and a start."""
    keys = jax.random.split(key, 5)
    below, above = _part(reduced.lower_source, keys[0]), _part(reduced.upper_source, keys[1])
    part = replace(reduced, lower_source=below, upper_source=above)
    x, pool = reduced.project(reduced.x0), part.lower_pool
    slope, ledger = oracles.lower_gradient(part, x, reduced.W0, pool, Ledger.empty())
    eps = jnp.finfo(jax.tree.leaves(slope)[0].dtype).eps
    # where some coefficients are never seen (an empty cell), the exact solves need coordinates without them
    blind = reduced.whitening is not None and reduced.whitening.rank < reduced.basis.size
    probe = part.whitened() if blind else part
    here, bend, ledger = _bend(probe, eps**0.75 * trees.norm(slope), keys[2], ledger)
    found, adjoint = here.W, here.adjoint
    if probe.coordinates is not None:
        forth = lambda tree, turn=probe.coordinates.transform: jax.tree.map(
            lambda z: jnp.tensordot(turn, z, axes=1), tree
        )
        found, adjoint = trees.add(forth(found), probe.coordinates.rest), forth(adjoint)
    W = trees.where(here.solved, found, reduced.W0)
    v = trees.where(here.sound, adjoint, trees.zeros(reduced.W0))

    ritz, ledger = _curvatures(part, x, W, pool, keys[3], _LANCZOS, ledger)
    before, ledger = _curvatures(part, x, reduced.W0, pool, keys[3], _LANCZOS, ledger)

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
        convex=jnp.maximum(ritz[0], 1e2 * eps * smooth),
        bend=bend,
        gradient=jnp.linalg.norm(_free(reduced, here.x, here.gradient)),
        pull=pull,
        steep=steep,
        epoch=jnp.asarray(
            max((source.rows or batch) / batch for source in (reduced.lower_source, reduced.upper_source)), bend.dtype
        ),
    )
    return Start(scales, W, v, ledger, here.solved, here.definite)
