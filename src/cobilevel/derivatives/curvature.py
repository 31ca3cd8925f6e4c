r"""The curvature of the reduced objective along directions of ``x``, by products: no second derivative is kept.

With the adjoint $v$ held, $\Lambda(x, W) = f_\Phi - v^T \partial_2 g_\Phi$ has the gradient of the reduced objective as
its derivative in ``x``, and none in ``W``. Along $p$ the coefficients move by $S p$, so that
$$H p = d\,\partial_1 \Lambda + S^T\, d\,\partial_2 \Lambda, \qquad \partial_{22} g_\Phi\, v' = d\,\partial_2 \Lambda,$$
where $d$ is the derivative along $(p, S p)$ and $v'$ the change of the adjoint. One product takes about as long as a
few gradients. Kinks of ``f`` are not in it: second derivatives do not see them.
"""

from collections.abc import Callable, Iterator
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
    (`pull`). `straight`: how the gradient would change if the policy were straight in ``x``, by ``f`` alone (Gauss and
    Newton's, for sums of squares)."""

    gradient: Float[np.ndarray, "k dx"]
    pull: Float[np.ndarray, "k N dy"]
    straight: Float[np.ndarray, "k dx"]


class RowsAlong(NamedTuple):
    r"""Of each row of a level, the second derivative of its share of $\Lambda$ along each direction (`bend`); of the
    lower level also how $\partial_2 g$ changes (`turned`)."""

    bend: Float[np.ndarray, "k n"]
    turned: Float[np.ndarray, "k n dy"]


Level = tuple[Any, bool]  # the program of an objective, and whether it is the upper level's


def _share(level: Level, constants: list) -> Callable:
    r"""What one row adds to $\Lambda$: ``f``, or minus ``v^T d2 g``."""
    (program, upper), function = level, of_vectors(level[0], constants)
    if upper:
        return lambda x, y, v, xi, eta: function(x, y, xi, eta)
    return lambda x, y, v, xi, eta: -jax.jvp(lambda q: function(x, q, xi, eta), (y,), (v,))[1]


# Compiled, of levels that see the same rows; what they give is a level's after the other.


@lru_cache(64)
def _sums(*levels: Level) -> Callable:
    """How gradients change along directions, of the sum over a block in ``x`` and of each row in ``y``."""

    def block(constants: Any, x: Any, y: Any, v: Any, shares: Any, xi: Any, eta: Any, along: Any) -> Any:
        def changes(level: Level, own: Any) -> Callable:
            share = _share(level, own)
            total = lambda x, y: shares @ jax.vmap(lambda *row: share(x, *row))(y, v, xi, eta)
            return jax.linearize(jax.grad(total, argnums=(0, 1)), x, y)[1]  # what directions share, once

        each = list(map(changes, levels, constants))
        return jax.vmap(lambda *direction: [one(*direction) for one in each])(*along)

    return unfused(block)


@lru_cache(64)
def _slopes(*levels: Level) -> Callable:
    """The gradients of each row in ``x`` and in ``y``."""

    def block(constants: Any, x: Any, y: Any, v: Any, shares: Any, xi: Any, eta: Any, along: Any) -> Any:
        slopes = (jax.grad(_share(*each), argnums=(0, 1)) for each in zip(levels, constants, strict=True))
        return [jax.vmap(slope, in_axes=(None, 0, 0, 0, 0))(x, y, v, xi, eta) for slope in slopes]

    return unfused(block)


@lru_cache(64)
def _rows(*levels: Level) -> Callable:
    """The second derivative of each row along directions, and of ``d2 g`` the first."""

    def one(level: Level, constants: Any, x: Any, y: Any, v: Any, xi: Any, eta: Any, p: Any, t: Any) -> Any:
        share = _share(level, constants)
        first = lambda a, b: jax.jvp(lambda q, r: share(q, r, v, xi, eta), (a, b), (p, t))[1]
        bend = jax.jvp(first, (x, y), (p, t))[1]
        if level[1]:
            return bend, jnp.zeros(0, bend.dtype)
        residual = lambda a, b: jax.grad(lambda q: share(a, b, q, xi, eta))(v)
        return bend, -jax.jvp(residual, (x, y), (p, t))[1]

    def block(constants: Any, x: Any, y: Any, v: Any, shares: Any, xi: Any, eta: Any, along: Any) -> Any:
        over = lambda level, own: lambda p, t: jax.vmap(
            lambda y, v, xi, eta, t: one(level, own, x, y, v, xi, eta, p, t)
        )(y, v, xi, eta, t)
        each = list(map(over, levels, constants))
        return jax.vmap(lambda *direction: [rows(*direction) for rows in each])(*along)

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

    def products(self, directions: Float[np.ndarray, "k dx"]) -> Along:
        """How gradients change along directions."""
        at, k, sums = self.at, len(directions), {True: [0.0, 0.0], False: [0.0, 0.0]}
        for pool, part, block in self._blocks(_sums, directions):
            for upper, (in_x, in_y) in block.items():
                rows = np.moveaxis(in_y[:, : part.stop - part.start], 0, 1)
                pull = summed_with(pool.taken(part), rows.reshape(len(rows), -1)).reshape(-1, k, at.dy)
                sums[upper][0] += at._along_x(in_x)
                sums[upper][1] += np.moveaxis(pull, 1, 0)
        upper, lower = (in_x + np.tensordot(pull, self.S, axes=2) for in_x, pull in (sums[True], sums[False]))
        return Along(upper + lower, sums[True][1] + sums[False][1], upper)

    def all_products(self) -> Along:
        """Along each coordinate."""
        parts = [self.products(rows) for rows in self.chunks(np.eye(self.S.shape[2]))]
        return Along(*map(np.concatenate, zip(*parts, strict=True)))

    def hessians(self) -> tuple[Float[np.ndarray, "dx dx"], Float[np.ndarray, "dx dx"]]:
        """That of the reduced objective, and what it would be if the policy were straight in ``x``."""
        along = self.all_products()
        return (along.gradient + along.gradient.T) / 2, (along.straight + along.straight.T) / 2

    def rows(self, directions: Float[np.ndarray, "k dx"]) -> tuple[RowsAlong, RowsAlong]:
        """The rows of the upper level and of the lower one along directions."""
        levels = {True: [], False: []}
        for _, part, block in self._blocks(_rows, directions):
            for upper, tables in block.items():
                levels[upper].append([rows[:, : part.stop - part.start] for rows in tables])
        whole = lambda blocks: RowsAlong(*(np.concatenate(part, axis=1) for part in zip(*blocks, strict=True)))
        return whole(levels[True]), whole(levels[False])

    def slopes(self) -> tuple[Float[np.ndarray, "m dx"], Float[np.ndarray, "n dx"]]:
        r"""The derivative of each row's share of $\Lambda$ along each coordinate: of the upper level's and of the lower
        level's, by gradients of the rows, which take no longer however many coordinates there are."""
        levels = {True: [], False: []}
        for pool, part, block in self._blocks(_slopes, np.zeros((0, self.S.shape[2]))):
            for upper, (in_x, in_y) in block.items():
                own = self.at._along_x(in_x[: part.stop - part.start])
                levels[upper].append(own + following(pool, self.S, in_y, part))
        return np.concatenate(levels[True]), np.concatenate(levels[False])

    def chunks(self, directions: Float[np.ndarray, "k dx"]) -> list[np.ndarray]:
        """Directions, as many at a time as what all rows give for them allows."""
        rows = max(pool.rows.count for pool, _ in self._levels())
        each = max(1, AT_ONCE // (rows * self.at.dy + self.at.dx))
        return [directions[k : k + each] for k in range(0, len(directions), each)]

    def _levels(self) -> list[tuple[RowPool, tuple[bool, ...]]]:
        """The rows, with the levels that see them: the upper one, the lower one, or both."""
        ((above,), (below,)) = self.at.upper_pools, self.at.lower_pools
        return [(below, (True, False))] if above is below else [(above, (True,)), (below, (False,))]

    def _moved(self, directions: np.ndarray) -> Float[np.ndarray, "N dyk"]:
        """How the coefficients move along directions."""
        return np.tensordot(self.S, directions, axes=(2, 1)).reshape(len(self.S), self.at.dy * len(directions))

    def _blocks(self, made: Callable, directions: np.ndarray) -> Iterator[tuple[RowPool, slice, dict[bool, Any]]]:
        """What a program gives for each block of rows of each level, those that fill it up included."""
        at, moved, count = self.at, self._moved(directions), len(directions)
        for pool, uppers in self._levels():
            objectives: list[Any] = [at.problem.upper if upper else at.problem.lower for upper in uppers]
            program = made(*((one.program, upper) for one, upper in zip(objectives, uppers, strict=True)))
            constants, rows = [one.constants for one in objectives], pool.rows
            cast = lambda a, dtype=rows.dtype: np.asarray(a, dtype)
            steps = cast(at.steps(directions))
            for upper in uppers:
                at.charge(*["upper_gradient" if upper else "hessian_vector"] * max(count, 1))

            def one(block: Any, pool=pool, program=program, constants=constants, cast=cast, steps=steps) -> Any:
                part, xi, eta = block
                size, phi, rows = block[0].stop - block[0].start, pool.taken(part), pool.rows
                shares = np.zeros(rows.size, rows.dtype)
                shares[:size] = pool.shares[part]
                turns = np.moveaxis(rows.filled((phi @ moved).reshape(size, at.dy, count), 0), 2, 0)
                table = lambda W: cast(rows.filled(phi @ W, 0))
                of_block = (table(self.W), table(self.V), shares, xi, eta, (steps, cast(turns)))
                return part, jax.device_get(program(constants, cast(self.x), *of_block))

            for part, levels in side_by_side(one, list(rows)):
                double = [[np.asarray(a, float) for a in level] for level in levels]
                yield pool, part, dict(zip(uppers, double, strict=True))


def following(
    pool: RowPool, table: Float[np.ndarray, "N dy k"], rows: Float[np.ndarray, "n dy"], part: slice = slice(None)
) -> Float[np.ndarray, "n k"]:
    """Rows after ``y`` times what each of several tables of coefficients comes to at them; those that fill up a block
    left out."""
    each = (pool.y(table[:, a], part) * rows[: len(pool.shares[part]), a, None] for a in range(table.shape[1]))
    return sum(each, np.zeros(()))
