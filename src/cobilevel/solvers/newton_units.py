r"""The units in which ``Newton`` measures ``x``: those in which every coordinate moves the upper objective alike.

With $\sigma_j$ the root mean square, over the samples, of the gradient in coordinate $j$, the products $x_j \sigma_j$
are in units of $f$ whatever the units of $x_j$, and so is the spread of $f$ over the samples, the natural length. The
$\sigma_j$ are powers of two, so that changing units does not round.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from ..derivatives import Ledger, oracles
from ..lower import Point
from ..problem import Bounds
from ..reduction import Batch, Bilevel

_NUMBERS = 10_000_000  # that the gradients of all samples may take; beyond, those of some samples must do
_NOISE_OF_SPREAD = 32  # the noise of the objective, in units of its own precision
_SHARE_OF_SPREAD = 1e-3  # an x near zero is measured by what moves the objective by this share of its spread
_LEFT_BEHIND = 1e-4  # of the distance from zero at which units were measured, below which they are measured anew
_SHARE_BEFORE = 0.35  # exponent of the precision: the share of a length that is kept where there is no other


def _some(batch: Batch, size: int) -> Batch:
    """Evenly spaced rows of a batch, so few that their gradients fit."""
    every = max(1, -(-len(batch) * size // _NUMBERS))
    return batch if every == 1 else jax.tree.map(lambda a: a[::every], replace(batch, count=None))


def _root_mean_square(batch: Batch, rows: PyTree) -> Float[Array, " dx"]:
    """Of each coordinate, without squaring anything large."""
    table = jax.vmap(lambda row: ravel_pytree(row)[0])(rows)
    most = jnp.max(jnp.abs(table), axis=0)
    share = table / jnp.where(most > 0, most, 1)
    return most * jnp.sqrt(batch.weight @ share**2 / jnp.maximum(jnp.sum(batch.weight), 1e-30))


def largest_size(scaled: Float[Array, " dx"]) -> Float[Array, ""]:
    """How far a scaled point is from zero; no squares, which would overflow far out."""
    return jnp.max(jnp.abs(scaled))


def _power_of_two(a: Float[Array, " dx"]) -> Float[Array, " dx"]:
    """The nearest one, for positive numbers."""
    return jnp.exp2(jnp.round(jnp.log2(a)))


class Units(eqx.Module):
    """`sigma`: what a unit of each coordinate is worth in units of the objective; `measured`: which of them were seen,
    others are guesses; `spread`: of the objective over the samples; `origin`: how far from zero they were measured."""

    sigma: Float[Array, " dx"]
    measured: Bool[Array, " dx"]
    spread: Float[Array, ""]
    origin: Float[Array, ""]

    @staticmethod
    def unknown(x: Float[Array, " dx"]) -> "Units":
        """Before anything was measured."""
        return Units(jnp.ones_like(x), jnp.zeros(len(x), bool), jnp.ones((), x.dtype), jnp.zeros((), x.dtype))

    @property
    def extent(self) -> Float[Array, ""]:
        """What an ``x`` near zero is measured by."""
        return _SHARE_OF_SPREAD * self.spread

    def scaled(self, point: Point) -> Point:
        """A point in these units."""
        return replace(point, x=point.x * self.sigma, gradient=point.gradient / self.sigma)

    def bounds(self, reduced: Bilevel) -> Bounds:
        """The bounds in these units."""
        flat = reduced.problem.bounds.flat()
        return Bounds(flat.lo * self.sigma, flat.hi * self.sigma)

    def projected(self, reduced: Bilevel, scaled: Point) -> Float[Array, " dx"]:
        """What the bounds leave of the gradient at a scaled point."""
        return self.bounds(reduced).projected_gradient(scaled.x, scaled.gradient, self.spread)

    def room(self, reduced: Bilevel, scaled: Point) -> Float[Array, " dx"]:
        """How far each coordinate of a scaled point could go against its gradient before it meets a bound."""
        bounds, x, g = self.bounds(reduced), scaled.x, scaled.gradient
        return jnp.where(g > 0, x - bounds.lo, jnp.where(g < 0, bounds.hi - x, 0))

    def at(self, reduced: Bilevel, point: Point, ledger: Ledger) -> tuple["Units", Ledger]:
        """With coordinates measured at a point (in its own units) that were not before, and the spread there.

        A coordinate without gradient at any sample has no such unit: it gets one from its size or its bounds, until
        the run has come to where it matters.
        """
        x = point.x
        tree = ravel_pytree(reduced.x0)[1](x)
        upper, lower = _some(reduced.upper_pool, len(x)), _some(reduced.lower_pool, len(x))
        (values, d1, _), ledger = oracles.upper_rows(reduced, tree, point.W, upper, ledger)
        (_, _, cross), _ = oracles.lower_rows(reduced, tree, point.W, point.adjoint, lower, Ledger.page())
        ledger = ledger.add("cross_product", lower)  # of the rows nothing else is used, or computed
        sigma = jnp.hypot(_root_mean_square(upper, d1), _root_mean_square(lower, cross))
        spread = self._spread(point, upper, values)
        seen = (sigma > 0) & jnp.isfinite(sigma) & ~self.measured
        guess = self._guess(reduced, x, jnp.where(self.measured, self.sigma, sigma), spread)
        fresh = _power_of_two(jnp.where(seen, sigma, guess))
        usable = jnp.isfinite(fresh) & (fresh > 0)
        fresh = jnp.where(self.measured | ~usable, self.sigma, fresh)
        return Units(fresh, self.measured | seen, spread, largest_size(x * fresh)), ledger

    def _spread(self, point: Point, batch: Batch, values: Float[Array, " b"]) -> Float[Array, ""]:
        """The standard deviation of the objective; where there is none its value, or a share of the spread before."""
        eps, size = jnp.finfo(values.dtype).eps, jnp.abs(point.value)
        centred = values - batch.weight @ values / jnp.maximum(jnp.sum(batch.weight), 1e-30)
        spread = _root_mean_square(batch, centred)[0]
        spread = jnp.where(spread > _NOISE_OF_SPREAD * eps * size, spread, size)
        before = jnp.where(jnp.any(self.measured), eps**_SHARE_BEFORE * self.spread, jnp.finfo(values.dtype).tiny)
        return jnp.where(jnp.isfinite(spread), jnp.where(spread > 0, spread, before), self.spread)

    def _guess(self, reduced: Bilevel, x: Array, sigma: Array, spread: Array) -> Float[Array, " dx"]:
        """For coordinates without gradient: by their size, their room, or as the others."""
        bounds = reduced.problem.bounds.flat()
        room = jnp.maximum(jnp.abs(x), jnp.where(jnp.isfinite(bounds.hi - bounds.lo), bounds.hi - bounds.lo, 0))
        most = jnp.max(jnp.where(jnp.isfinite(sigma), sigma, 0))
        return jnp.where(room > 0, spread / jnp.where(room > 0, room, 1), jnp.where(most > 0, most, 1))

    def left_behind(self, point: Point) -> Bool[Array, ""]:
        """Whether a point is so much nearer to zero than where these units were measured that they say nothing of it:
        neither they, nor the curvature along the way, nor the first gradient."""
        return jnp.any(self.measured) & (largest_size(point.x * self.sigma) < _LEFT_BEHIND * self.origin)

    def refreshed(
        self, reduced: Bilevel, point: Point, moved: Bool[Array, ""], ledger: Ledger
    ) -> tuple["Units", Bool[Array, ""], Ledger]:
        """After a move to a point: measured there where a coordinate shows its first gradient; measured anew, as is
        stated along with the units, where they are left behind; the spread alone where the point is near zero, so that
        its extent hangs on the spread.

        By loops and not branches: mapped over problems, they run only where one of them wants it.
        """
        anew = moved & self.left_behind(point) & jnp.any(point.gradient != 0)

        def measure(carry):
            units, ledger, _ = carry
            units = replace(units, measured=units.measured & ~anew)
            return *units.at(reduced, point, ledger), jnp.asarray(False)

        def look(carry):
            units, ledger, _ = carry
            batch, tree = reduced.upper_pool, ravel_pytree(reduced.x0)[1](point.x)
            (values, _, _), ledger = oracles.upper_rows(reduced, tree, point.W, batch, ledger)
            return replace(units, spread=units._spread(point, batch, values)), ledger, jnp.asarray(False)

        ask = lambda carry: carry[2]
        first = anew | moved & jnp.any(~self.measured & (point.gradient != 0))
        units, ledger, _ = jax.lax.while_loop(ask, measure, (self, ledger, first))
        again = moved & ~first & (jnp.linalg.norm(point.x * units.sigma) < units.extent)
        units, ledger, _ = jax.lax.while_loop(ask, look, (units, ledger, again))
        return units, anew, ledger
