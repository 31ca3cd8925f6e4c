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

from ..ground import quick, unfused
from .expansion import Expansions
from .rows import AT_ONCE, of_vectors, side_by_side
from .sums import RowPool, summed_with

_SMALL = 2**17  # numbers along all directions of a block: they are there before a better program would be compiled


class Along(NamedTuple):
    r"""What changes along each of some directions: the `gradient` of the reduced objective, and $\partial_2 \Lambda$
    (`pull`). `straight`: how the gradient would change if the policy were straight in ``x``, by ``f`` alone (Gauss and
    Newton's, for sums of squares). `upper`, `lower`: the second derivative of each row's share of $\Lambda$."""

    gradient: Float[np.ndarray, "k dx"]
    pull: Float[np.ndarray, "k N dy"]
    straight: Float[np.ndarray, "k dx"]
    upper: Float[np.ndarray, "k m"]
    lower: Float[np.ndarray, "k n"]


_Level = tuple[Any, bool]  # the program of an objective, and whether it is the upper level's


def _share(level: _Level, constants: list) -> Callable:
    r"""What one row adds to $\Lambda$: ``f``, or minus ``v^T d2 g``."""
    function = of_vectors(level[0], constants)
    if level[1]:
        return lambda x, y, v, xi, eta: function(x, y, xi, eta)
    return lambda x, y, v, xi, eta: -jax.jvp(lambda q: function(x, q, xi, eta), (y,), (v,))[1]


@lru_cache(64)
def _changes(small: bool, *levels: _Level) -> Callable:
    """Compiled, of levels that see the same rows: along each direction, how gradients change, of the sum over a block
    in ``x`` and of each row in ``y``, and the second derivative of each row; a level after the other."""

    def block(constants: Any, x: Any, y: Any, v: Any, shares: Any, xi: Any, eta: Any, along: Any) -> Any:
        def changes(level: _Level, own: Any) -> Callable:
            rows = lambda x, y: jnp.sum(jax.vmap(_share(level, own))(x, y, v, xi, eta))
            each = jnp.broadcast_to(x, (len(y), len(x)))

            def one(p: Any, t: Any) -> tuple[Any, Any, Any]:
                along = jnp.broadcast_to(p, each.shape), t
                in_x, in_y = jax.jvp(jax.grad(rows, argnums=(0, 1)), (each, y), along)[1]
                return shares @ in_x, in_y, in_x @ p + jnp.sum(in_y * t, axis=1)

            return one

        every = list(map(changes, levels, constants))
        return jax.vmap(lambda *direction: [one(*direction) for one in every])(*along)

    return (quick if small else unfused)(block)


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

    def products(self, directions: Float[np.ndarray, "k dx"], by_row: bool = True) -> Along:
        """How gradients change along directions; and each row's share, where that is asked for."""
        at, k, sums, rows = self.at, len(directions), {True: [0.0, 0.0], False: [0.0, 0.0]}, {True: [], False: []}
        for pool, part, block in self._blocks(directions):
            for upper, (in_x, in_y, bend) in block.items():
                count = part.stop - part.start
                turned = np.moveaxis(in_y[:, :count], 0, 1).reshape(count, -1) * pool.shares[part, None]
                sums[upper][0] += at._along_x(in_x)
                sums[upper][1] += np.moveaxis(summed_with(pool.taken(part), turned).reshape(-1, k, at.dy), 1, 0)
                rows[upper].append(bend[:, : count if by_row else 0])
        upper, lower = (in_x + np.tensordot(pull, self.S, axes=2) for in_x, pull in (sums[True], sums[False]))
        of_rows = (np.concatenate(rows[level], axis=1) for level in (True, False))
        return Along(upper + lower, sums[True][1] + sums[False][1], upper, *of_rows)

    def along(self, directions: Float[np.ndarray, "k dx"], by_row: bool = True) -> Along:
        """The same as `products`, of as many directions at a time as what rows give for them allows; always as many, so
        that one program serves."""
        pools, k = [pool.rows for pool, _ in self._levels()], len(directions)
        numbers = max(rows.count for rows in pools) * self.at.dy + max(rows.size for rows in pools) * (
            self.at.dx + self.at.dy
        )
        parts = max(1, -(-k * numbers // AT_ONCE))
        each = -(-k // min(parts, k)) if k else 1
        padded = np.concatenate([directions, np.zeros((-k % each, directions.shape[1]))])
        along = [self.products(padded[begin : begin + each], by_row) for begin in range(0, len(padded), each)]
        return Along(*(np.concatenate(each)[:k] for each in zip(*along, strict=True)))

    def hessians(self) -> tuple[Float[np.ndarray, "dx dx"], Float[np.ndarray, "dx dx"]]:
        """That of the reduced objective, and what it would be if the policy were straight in ``x``."""
        along = self.along(np.eye(self.S.shape[2]), by_row=False)
        return (along.gradient + along.gradient.T) / 2, (along.straight + along.straight.T) / 2

    def slopes(self) -> tuple[Float[np.ndarray, "m dx"], Float[np.ndarray, "n dx"]]:
        r"""The derivative of each row's share of $\Lambda$ along each coordinate, at the upper level's rows and at the
        lower level's: by the derivatives that expansions are sums of."""
        at, ((above,), (below,)), v = self.at, (self.at.upper_pools, self.at.lower_pools), self.at.lower_pools[0].y
        sizes = at.sizes

        def upper(packed: np.ndarray, part: slice) -> np.ndarray:
            rows = sizes.split_upper(packed)
            return at._along_x(rows.d1) + following(above, self.S, rows.d2, part)

        def lower(packed: np.ndarray, part: slice) -> np.ndarray:
            rows, own = sizes.split_lower(packed), v(self.V, part)
            in_x = np.einsum("naj,na->nj", rows.cross, own)
            return -at._along_x(in_x) - following(below, self.S, np.einsum("nab,nb->na", rows.hessian, own), part)

        return at.tables(self.x, self.W, upper, lower)

    def turned(self, directions: Float[np.ndarray, "k dx"]) -> Float[np.ndarray, "k n dy"]:
        """How ``d2 g`` changes at each row of the lower level along directions."""
        at, sizes, (pool,) = self.at, self.at.sizes, self.at.lower_pools
        steps, moved, k = at.steps(directions), self._moved(directions), len(directions)

        def lower(packed: np.ndarray, part: slice) -> np.ndarray:
            rows = sizes.split_lower(packed)
            y = pool.y(moved, part).reshape(len(packed), at.dy, k)
            turned = rows.hessian @ y + rows.cross @ steps.T
            return turned.reshape(len(packed), -1)

        return np.moveaxis(at.tables(self.x, self.W, None, lower)[1].reshape(-1, at.dy, k), 2, 0)

    def _levels(self) -> list[tuple[RowPool, tuple[bool, ...]]]:
        """The rows, with the levels that see them: the upper one, the lower one, or both."""
        ((above,), (below,)) = self.at.upper_pools, self.at.lower_pools
        return [(below, (True, False))] if above is below else [(above, (True,)), (below, (False,))]

    def _moved(self, directions: np.ndarray) -> Float[np.ndarray, "N dyk"]:
        """How the coefficients move along directions."""
        return np.tensordot(self.S, directions, axes=(2, 1)).reshape(len(self.S), self.at.dy * len(directions))

    def _blocks(self, directions: np.ndarray) -> Iterator[tuple[RowPool, slice, dict[bool, Any]]]:
        """The changes in each block of rows, those that fill it up included, of each level."""
        at, moved, count = self.at, self._moved(directions), len(directions)
        for pool, uppers in self._levels():
            objectives: list[Any] = [at.problem.upper if upper else at.problem.lower for upper in uppers]
            small = pool.rows.size * count * (at.dx + at.dy) <= _SMALL
            program = _changes(small, *((one.program, upper) for one, upper in zip(objectives, uppers, strict=True)))
            constants, rows = [one.constants for one in objectives], pool.rows
            cast = lambda a, dtype=rows.dtype: np.asarray(a, dtype)
            steps = cast(at.steps(directions))
            for upper in uppers:
                at.charge(*["upper_gradient" if upper else "hessian_vector"] * count)

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
