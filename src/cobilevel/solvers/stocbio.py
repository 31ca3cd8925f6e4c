"""``StocBiO``: inner gradient steps, then a Neumann-series hypergradient on fresh batches (Ji, Yang, Liang 2021)."""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from .. import oracles
from ..checks import whole
from ..hypergradient import Neumann, hypergradient
from ..solver import Solver, State, at, fresh, traced


class StocBiOState(State):
    key: Array
    x_mean: PyTree[Array]
    W_mean: PyTree[Array]
    averaged: Int[Array, ""]
    value: Float[Array, ""]
    size: Float[Array, ""]


class StocBiO(Solver):
    r"""The algorithm as published, with batches drawn with replacement.

    $$W_{k}^{t+1} = W_k^t - \beta\, \partial_2 g_\Phi(x_k, W_k^t; S_t), \quad t < T, \qquad
    x_{k+1} = P\big[x_k - \alpha\, (\partial_1 f_\Phi - \partial_{12} g_\Phi\, v)\big], \qquad
    v = s \sum_{q=0}^{K} \prod_{j=1}^{q} (I - s\, \partial_{22} g_\Phi(\cdot; B_j))\, \partial_2 f_\Phi .$$

    ``W`` is kept from one outer step to the next. The answer is the average over the last part of the run.

    **Arguments:** step sizes are numbers or functions of the outer step (any Optax schedule).

    - `inner`: $\beta$; `outer`: $\alpha$; `neumann`: $s$, by default the inner step.
    - `inner_steps`: $T$; `terms`: $K$; `kind`: see ``hypergradient.Neumann``.
    - `average`: the share of the run, at its end, whose iterates are averaged.
    - `batch`: samples in each batch.

    Reference: K. Ji, J. Yang, Y. Liang, Bilevel optimization: convergence analysis and enhanced design, ICML 2021.
    """

    options: ClassVar[tuple[str, ...]] = ("batch",)
    default_steps = 2000
    chunk = 100

    inner: Any = eqx.field(converter=traced)
    outer: Any = eqx.field(converter=traced)
    neumann: Any = eqx.field(converter=lambda v: None if v is None else traced(v), default=None)
    inner_steps: int = eqx.field(static=True, default=10)
    terms: int = eqx.field(static=True, default=10)
    kind: Literal["sum", "product"] = eqx.field(static=True, default="sum")
    average: Any = eqx.field(converter=traced, default=0.1)
    batch: int = eqx.field(static=True, default=64)

    def __check_init__(self):
        for name, least in (("inner_steps", 1), ("terms", 0), ("batch", 1)):
            whole(f"StocBiO: {name}", getattr(self, name), least)

    def init(self, reduced, key, steps):
        start = fresh(reduced, steps)
        zero = jnp.zeros((), jax.tree.leaves(start["W"])[0].dtype)
        return StocBiOState(
            **start, key=key, x_mean=start["x"], W_mean=start["W"], averaged=jnp.int32(0), value=zero, size=zero
        )

    def step(self, reduced, state):
        dtype = state.value.dtype
        key = jax.random.fold_in(state.key, state.step)
        for_inner, for_upper, for_cross, for_neumann = jax.random.split(key, 4)
        beta, alpha = (at(schedule, state.step, dtype) for schedule in (self.inner, self.outer))
        scale = beta if self.neumann is None else at(self.neumann, state.step, dtype)
        draw = lambda key: reduced.lower_source.draw(key, self.batch)

        def descend(carry, key):
            W, ledger = carry
            slope, ledger = oracles.lower_gradient(reduced, state.x, W, draw(key), ledger)
            return (jax.tree.map(lambda w, d: w - beta * d, W, slope), ledger), None

        keys = jax.random.split(for_inner, self.inner_steps)
        (W, ledger), _ = jax.lax.scan(descend, (state.W, state.ledger), keys)
        value, gradient, _, ledger = hypergradient(
            reduced,
            state.x,
            W,
            reduced.upper_source.draw(for_upper, self.batch),
            draw(for_cross),
            Neumann(self.terms, scale, self.kind),
            draw,
            for_neumann,
            ledger,
        )
        x = reduced.project(jax.tree.map(lambda a, d: a - alpha * d, state.x, gradient))
        # the average starts over with each step until the last part begins
        begun = state.step + 1 > (1 - self.average) * state.limit
        count = jnp.where(begun, state.averaged + 1, 1)
        mean = lambda old, new: old + (new - old) / jnp.asarray(count, dtype)
        return StocBiOState(
            x=x,
            W=W,
            step=state.step,
            limit=state.limit,
            result=state.result,
            ledger=ledger,
            key=state.key,
            x_mean=jax.tree.map(mean, state.x_mean, x),
            W_mean=jax.tree.map(mean, state.W_mean, W),
            averaged=jnp.where(begun, count, 0).astype(jnp.int32),
            value=value,
            size=jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))),
        )

    def answer(self, state):
        return state.x_mean, state.W_mean

    def record(self, state):
        return {"upper": state.value, "gradient": state.size}
