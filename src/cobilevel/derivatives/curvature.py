r"""The curvature of the reduced objective along directions of ``x``, by products: no second derivative is kept.

With the adjoint $v$ held, $\Lambda(x, W) = f_\Phi - v^T \partial_2 g_\Phi$ has the gradient of the reduced objective as
its derivative in ``x``, and none in ``W``. Along $p$ the coefficients move by $S p$, so that
$$H p = d\,\partial_1 \Lambda + S^T\, d\,\partial_2 \Lambda, \qquad \partial_{22} g_\Phi\, v' = d\,\partial_2 \Lambda,$$
where $d$ is the derivative along $(p, S p)$ and $v'$ the change of the adjoint. One product takes about as long as a
few gradients. Kinks of ``f`` are not in it: second derivatives do not see them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..programs import unfused
from .expansion import Expansions
from .rows import AT_ONCE, of_vectors
from .sums import RowPool, side_by_side, summed_with


class Along(NamedTuple):
    r"""What changes along each of some directions: the `gradient` of the reduced objective, and $\partial_2 \Lambda$
    (`pull`)."""

    gradient: Float[np.ndarray, "k dx"]
    pull: Float[np.ndarray, "k N dy"]


class RowsAlong(NamedTuple):
    r"""Of each row of a level, the second derivative of its share of $\Lambda$ along each direction (`bend`); of the
    lower level also how $\partial_2 g$ changes (`turned`)."""

    bend: Float[np.ndarray, "k n"]
    turned: Float[np.ndarray, "k n dy"]


def _share(program: Any, constants: list, upper: bool) -> Callable:
    r"""What one row adds to $\Lambda$: ``f``, or minus ``v^T d2 g``."""
    function = of_vectors(program, constants)
    if upper:
        return lambda x, y, v, xi, eta: function(x, y, xi, eta)
    return lambda x, y, v, xi, eta: -jax.jvp(lambda q: function(x, q, xi, eta), (y,), (v,))[1]


@lru_cache(64)
def _sums(program: Any, upper: bool) -> Callable:
    """Compiled: how gradients change along directions, of the sum over a block in ``x`` and of each row in ``y``."""

    def block(constants: Any, x: Any, y: Any, v: Any, shares: Any, xi: Any, eta: Any, along: Any) -> Any:
        share = _share(program, constants, upper)

        def total(x: Any, y: Any) -> Any:
            return shares @ jax.vmap(lambda *row: share(x, *row))(y, v, xi, eta)

        changes = jax.linearize(jax.grad(total, argnums=(0, 1)), x, y)[1]  # what directions share, once
        return jax.lax.map(lambda direction: changes(*direction), along)

    return unfused(block)


@lru_cache(64)
def _slopes(program: Any, upper: bool) -> Callable:
    """Compiled: the gradients of each row in ``x`` and in ``y``."""

    def block(constants: Any, x: Any, y: Any, v: Any, shares: Any, xi: Any, eta: Any, along: Any) -> Any:
        slopes = jax.grad(_share(program, constants, upper), argnums=(0, 1))
        return jax.vmap(slopes, in_axes=(None, 0, 0, 0, 0))(x, y, v, xi, eta)

    return unfused(block)


@lru_cache(64)
def _rows(program: Any, upper: bool) -> Callable:
    """Compiled: the second derivative of each row along directions, and of ``d2 g`` the first."""

    def one(x: Any, y: Any, v: Any, xi: Any, eta: Any, p: Any, t: Any, constants: Any) -> Any:
        share = _share(program, constants, upper)
        first = lambda a, b: jax.jvp(lambda q, r: share(q, r, v, xi, eta), (a, b), (p, t))[1]
        bend = jax.jvp(first, (x, y), (p, t))[1]
        if upper:
            return bend, jnp.zeros(0, bend.dtype)
        residual = lambda a, b: jax.grad(lambda q: share(a, b, q, xi, eta))(v)
        return bend, -jax.jvp(residual, (x, y), (p, t))[1]

    def block(constants: Any, x: Any, y: Any, v: Any, shares: Any, xi: Any, eta: Any, along: Any) -> Any:
        rows = jax.vmap(one, in_axes=(None, 0, 0, 0, 0, None, 0, None))
        return jax.lax.map(lambda direction: rows(x, y, v, xi, eta, *direction, constants), along)

    return unfused(block)


class Curvature:
    """The curvature at one point: ``x``, coefficients `W`, adjoint `V`, and `S`, how the coefficients move with ``x``.

    All rows are in one pool.
    """

    def __init__(
        self,
        at: Expansions,
        x: Float[np.ndarray, " dx"],
        W: Float[np.ndarray, "N dy"],
        V: Float[np.ndarray, "N dy"],
        S: Float[np.ndarray, "N dy dx"],
    ):
        self.at, self.x, self.W, self.V, self.S = at, at.point(x), W, V, S

    def products(self, directions: Float[np.ndarray, "k dx"], straight: bool = False) -> Along:
        """How gradients change along directions; or would, if the policy were `straight` in ``x``: by ``f`` alone."""
        at, parts = self.at, []
        for pool, upper in self._levels()[: 1 if straight else 2]:
            sums = [0.0, 0.0]
            for part, (in_x, in_y) in self._blocks(pool, upper, _sums, directions):
                in_y = in_y[:, : part.stop - part.start]
                phi, rows = pool.taken(part), np.moveaxis(in_y, 0, 1).reshape(in_y.shape[1], -1)
                sums[0] += at._along_x(in_x)
                sums[1] += np.moveaxis(summed_with(phi, rows).reshape(-1, len(directions), at.dy), 1, 0)
            parts.append(sums)
        in_x, pull = (sum(each) for each in zip(*parts, strict=True))
        return Along(in_x + np.tensordot(pull, self.S, axes=2), pull)

    def all_products(self, straight: bool = False) -> Along:
        """Along each coordinate."""
        parts = [self.products(rows, straight) for rows in self.chunks(np.eye(self.S.shape[2]))]
        return Along(*map(np.concatenate, zip(*parts, strict=True)))

    def rows(self, directions: Float[np.ndarray, "k dx"]) -> tuple[RowsAlong, RowsAlong]:
        """The rows of the upper level and of the lower one along directions."""
        levels = []
        for pool, upper in self._levels():
            blocks = [
                [rows[:, : part.stop - part.start] for rows in block]
                for part, block in self._blocks(pool, upper, _rows, directions)
            ]
            levels.append(RowsAlong(*(np.concatenate(part, axis=1) for part in zip(*blocks, strict=True))))
        return levels[0], levels[1]

    def slopes(self) -> tuple[Float[np.ndarray, "m dx"], Float[np.ndarray, "n dx"]]:
        r"""The derivative of each row's share of $\Lambda$ along each coordinate: of the upper level's and of the lower
        level's, by gradients of the rows, which take no longer however many coordinates there are."""
        levels = []
        for pool, upper in self._levels():
            blocks = [
                self.at._along_x(in_x[: part.stop - part.start]) + following(pool, self.S, in_y, part)
                for part, (in_x, in_y) in self._blocks(pool, upper, _slopes, np.zeros((0, self.S.shape[2])))
            ]
            levels.append(np.concatenate(blocks))
        return levels[0], levels[1]

    def chunks(self, directions: Float[np.ndarray, "k dx"]) -> list[np.ndarray]:
        """Directions, as many at a time as what all rows give for them allows."""
        rows = max(pool.rows.count for pool, _ in self._levels())
        each = max(1, AT_ONCE // (rows * self.at.dy + self.at.dx))
        return [directions[k : k + each] for k in range(0, len(directions), each)]

    def _levels(self) -> tuple[tuple[RowPool, bool], ...]:
        ((upper,), (lower,)) = self.at.upper_pools, self.at.lower_pools
        return (upper, True), (lower, False)

    def _moved(self, directions: np.ndarray) -> Float[np.ndarray, "N dyk"]:
        """How the coefficients move along directions."""
        return np.tensordot(self.S, directions, axes=(2, 1)).reshape(len(self.S), self.at.dy * len(directions))

    def _blocks(self, pool: RowPool, upper: bool, made: Callable, directions: np.ndarray) -> Any:
        """What a program gives for each block of rows, those that fill it up included."""
        at, rows, moved = self.at, pool.rows, self._moved(directions)
        objective: Any = at.problem.upper if upper else at.problem.lower
        program, cast = made(objective.program, upper), lambda a: np.asarray(a, rows.dtype)
        steps = cast(at.steps(directions))
        at.charge(*["upper_gradient" if upper else "hessian_vector"] * max(len(directions), 1))

        def one(block: tuple[slice, Any, Any]) -> tuple[slice, list[np.ndarray]]:
            part, xi, eta = block
            count, phi = part.stop - part.start, pool.taken(part)
            shares = np.zeros(rows.size, rows.dtype)
            shares[:count] = pool.shares[part]
            turns = np.moveaxis(rows.filled((phi @ moved).reshape(count, at.dy, len(directions)), 0), 2, 0)
            table = lambda W: cast(rows.filled(phi @ W, 0))
            of_block = (table(self.W), table(self.V), shares, xi, eta, (steps, cast(turns)))
            return part, [np.asarray(a, float) for a in program(objective.constants, cast(self.x), *of_block)]

        return side_by_side(one, list(rows))


def following(
    pool: RowPool, table: Float[np.ndarray, "N dy k"], rows: Float[np.ndarray, "n dy"], part: slice = slice(None)
) -> Float[np.ndarray, "n k"]:
    """Rows after ``y`` times what each of several tables of coefficients comes to at them; those that fill up a block
    left out."""
    each = (pool.y(table[:, a], part) * rows[: len(pool.shares[part]), a, None] for a in range(table.shape[1]))
    return sum(each, np.zeros(()))
