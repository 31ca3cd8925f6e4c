r"""Nested stochastic gradients: the lower level solved afresh by EPOCH-GD for every context that is drawn.

EPOCH-GD (Hazan and Kale, 2014) takes $2^j T_0$ steps of length $\beta / 2^j$ in epoch $j$ and hands on their average.
After epoch $k$ the squared distance to $y^\star(x, \xi)$ is $O(2^{-k})$ on average, for $O(2^k)$ draws of
$\eta \mid \xi$. With $y_k$ in place of the solution the hypergradient is estimated by
$$v_k = \partial_1 f(x, y_k) - \partial_{12} g\, \Lambda\, \partial_2 f(x, y_k), \qquad
\Lambda = s \sum_{q=0}^{Q} \prod_{i=1}^{q} (I - s\, \partial_{22} g_i),$$
a Neumann series on fresh draws. ``DLSGD`` takes $v_K$: its bias is $O(2^{-K/2})$ and its cost $O(2^K)$. ``RTMLMC``
takes $v_0 + (v_{k+1} - v_k) / p_k$ with $k < K$ at random, $p_k \propto 2^{-k}$: the same mean $E\, v_K$ for an
expected cost of $O(K)$, with a variance of $O(K)$.

Reference: Y. Hu, J. Wang, Y. Xie, A. Krause and D. Kuhn, Contextual stochastic bilevel optimization, NeurIPS 2023.
"""

from abc import abstractmethod
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..derivatives import AtContext, flattened, totals_of
from ..ground import positive, whole
from ..iteration import Result
from ..problem import Level
from ..study import Study
from .method import Direct, DirectRun, Lengths, NoiseSampler, draw_joint, noise_given, objectives_of, outer_step

_NO_POLICY = (
    "{name} has no policy: it solves the lower level at each context it draws, and keeps none of the solutions. At a "
    "given x, cb.direct.PerContext() solves it at any context; cb.solve(problem, samples) finds x and the policy."
)


class Inner(eqx.Module):
    """EPOCH-GD and the Neumann series at one context."""

    functions: AtContext
    noise: NoiseSampler
    start: Float[Array, " dy"]  # y0
    step: Float[Array, ""]
    first: int = eqx.field(static=True)
    terms: int = eqx.field(static=True)

    def _rows(self, key: Array, xi: Array) -> tuple:
        """One draw of noise at a context."""
        return xi, self.noise(key, xi, 1), jnp.ones(1, self.start.dtype)

    def epochs(self, x: Any, y: Any, xi: Any, key: Array, begin: Any, end: Any) -> Float[Array, " dy"]:
        """``y`` after the epochs `begin`, ..., ``end - 1``; they may be traced."""

        def epoch(number: Any, y: Any) -> Any:
            key_here, count = jax.random.fold_in(key, number), self.first * 2**number
            length = self.step / (2**number).astype(self.step.dtype)

            def one(t: Any, carry: tuple) -> tuple:
                y, total = carry
                y = y - length * self.functions.slope(x, y, *self._rows(jax.random.fold_in(key_here, t), xi))[1]
                return y, total + y

            total = jax.lax.fori_loop(0, count, one, (y, jnp.zeros_like(y)))[1]
            return total / count.astype(y.dtype)

        return jax.lax.fori_loop(jnp.asarray(begin), jnp.asarray(end), epoch, y)

    def hypergradient(self, x: Any, y: Any, xi: Any, eta: Any, key: Array) -> Float[Array, " dx"]:
        """``v`` at a ``y``; the same key draws the same noise."""
        keys = jax.random.split(key, self.terms + 1)
        _, d1, d2 = self.functions.upper_slopes(x, y, xi, eta, jnp.ones(1, y.dtype))

        def term(carry: tuple, key: Array) -> tuple:
            power, total = carry
            power = power - self.step * self.functions.product(x, y, power, *self._rows(key, xi))
            return (power, total + power), None

        (_, total), _ = jax.lax.scan(term, (d2, d2), keys[1:])
        return d1 - self.functions.cross(x, y, self.step * total, *self._rows(keys[0], xi))


class _Draws(NamedTuple):
    """What one outer step draws: contexts with their upper noise, and a key for each."""

    xi: Any
    eta: Any
    keys: Array


def _drawn(upper: Level, key: Array, batch: int) -> _Draws:
    for_rows, for_noise = jax.random.split(key)
    xi, eta = draw_joint(upper, for_rows, batch)
    return _Draws(xi, jax.tree.map(lambda a: a[:, None], eta), jax.random.split(for_noise, batch))


class Nested(Direct):
    """What ``DLSGD`` and ``RTMLMC`` share: steps along an estimate over a few contexts, of a length that falls to zero.

    **Arguments:**

    - `outer`: the first outer step; by default measured at the start (one over the curvature of the upper objective).
      Steps decay to zero along a cosine.
    - `inner`: the first step of EPOCH-GD, and of the Neumann series; by default one over the curvature of ``g`` at the
      start.
    - `epochs`: the last epoch ``K``; `first`: steps of the first epoch, by default twice the condition number of ``g``
      at the start, and at most 100.
    - `terms`: the length of the Neumann series, by default twice `first`.
    - `batch`: contexts that a step averages over.
    """

    outer: Any = None
    inner: Any = None
    epochs: int = eqx.field(static=True, default=6)
    first: int | None = eqx.field(static=True, default=None)
    terms: int | None = eqx.field(static=True, default=None)
    batch: int = eqx.field(static=True, default=16)

    def __check_init__(self):
        name = type(self).__name__
        for part in ("epochs", "first", "terms", "batch"):
            if getattr(self, part) is not None:
                whole(f"{name}: {part}", getattr(self, part))
        for part in ("outer", "inner"):
            if getattr(self, part) is not None:
                positive(f"{name}: {part}", getattr(self, part))

    @property
    def default_steps(self):
        return 1000

    @abstractmethod
    def estimate(self, inner: Inner, x: Any, draws: _Draws, key: Array) -> tuple[Array, Array]:
        """The hypergradient over the contexts drawn, and the last epoch that was run."""

    def prepared(self, study: Study, key: Array) -> Inner:
        """With what was left out measured at the start."""
        functions, noise = objectives_of(study), noise_given(study, type(self).__name__)
        start, x = (jnp.asarray(flattened(tree), study.dtype) for tree in (study.problem.y0, study.problem.x0))
        least, most = _curvature(functions, noise, study.lower.contexts().xi, x, start, key)
        step = 1 / most if self.inner is None else jnp.asarray(self.inner, study.dtype)
        most_steps = 100
        ratio = float(2 / (step * least)) if float(least) > 0 else most_steps
        first = int(np.clip(np.ceil(ratio), 1, most_steps)) if self.first is None else self.first
        return Inner(functions, noise, start, step, first, 2 * first if self.terms is None else self.terms)

    def run(self, study, key, limits):
        for_start, for_outer, for_run = jax.random.split(key, 3)
        inner, x = self.prepared(study, for_start), jnp.asarray(flattened(study.problem.x0), study.dtype)
        outer = self._first_step(inner, study.upper, x, for_outer) if self.outer is None else self.outer
        bounds = tuple(jnp.asarray(flattened(end), study.dtype) for end in study.problem.x_bounds)
        levels, course, diverged = np.zeros(self.epochs + 1, int), Lengths(limits, study.dtype), False
        for numbers, shares in course:
            keys = jax.vmap(lambda k: jax.random.fold_in(for_run, k))(numbers)
            after, slope, ran = _advance(
                replace(self, outer=None, inner=None), inner, study.upper, x, bounds, shares * outer, keys
            )
            levels += np.bincount(np.asarray(ran), minlength=len(levels))
            diverged = not np.isfinite(after).all()
            if diverged:
                break
            x = after
            course.record(x, slope)
        words = f"outer step {float(outer):.3g}, inner step {float(inner.step):.3g}, {inner.first} steps in the first "
        words += f"epoch, {inner.terms} terms of the series, {self.batch} contexts per step."
        result = Result.DIVERGED if diverged else course.result()
        follow = _NO_POLICY.format(name=type(self).__name__)
        return DirectRun(np.asarray(x, float), result, follow, self._spent(inner, levels), {"steps": words})

    def _first_step(self, inner: Inner, upper: Level, x: Array, key: Array) -> float:
        """Measured over more contexts, and few epochs: close enough, and without chance."""
        rough = DLSGD(epochs=min(self.epochs, 3), batch=4 * self.batch)
        return outer_step(lambda at: _slope_at(rough, inner, upper, at, key), x)

    def _spent(self, inner: Inner, levels: Int[np.ndarray, " K"]) -> dict[str, Any]:
        """Calls and samples by kind: `levels` counts outer steps by the last epoch that they ran."""
        steps = int(levels.sum())
        gradients = sum(int(often) * inner.first * (2 ** (k + 1) - 1) for k, often in enumerate(levels))
        solves = self.batch * self.estimates * steps
        counts = {
            "upper_gradient": solves, "lower_gradient": self.batch * gradients,
            "hessian_vector": inner.terms * solves, "cross_product": solves,
        }  # fmt: skip
        return totals_of({(kind, unit): n for kind, n in counts.items() for unit in ("calls", "samples")})

    @property
    @abstractmethod
    def estimates(self) -> int:
        """How many times a context's hypergradient is estimated in a step."""


def _shared_doc(name: str) -> str:
    """What is said of both, with an example of one."""
    return f"""{(Nested.__doc__ or "").partition(":")[2].strip()}

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> method = cb.direct.{name}(first=10, epochs=3)
    >>> solution = method.solve(case.problem, case.train, steps=10)  # this problem has a sampler
    >>> solution.x.shape
    (2,)
    """


class DLSGD(Nested):
    __doc__ = f"Double-loop SGD: {_shared_doc('DLSGD')}"

    @property
    def estimates(self):
        return 1

    def estimate(self, inner, x, draws, key):
        def one(xi: Any, eta: Any, key: Array) -> Any:
            for_epochs, for_series = jax.random.split(key)
            y = inner.epochs(x, inner.start, xi, for_epochs, 0, self.epochs + 1)
            return inner.hypergradient(x, y, xi, eta, for_series)

        return jnp.mean(jax.vmap(one)(*draws), axis=0), jnp.asarray(self.epochs)


class RTMLMC(Nested):
    __doc__ = (
        "Randomised truncated multilevel Monte Carlo over the same inner solver: one level per step, shared by its "
        f"contexts; {_shared_doc('RTMLMC')}"
    )

    @property
    def estimates(self):
        return 3

    @property
    def chances(self) -> Float[np.ndarray, " K"]:
        """Of the levels ``0, ..., K - 1``: proportional to ``2^-k``."""
        odds = 0.5 ** np.arange(self.epochs)
        return odds / odds.sum()

    def estimate(self, inner, x, draws, key):
        chances = jnp.asarray(self.chances, x.dtype)
        level = jax.random.choice(key, self.epochs, p=chances)
        mean = lambda rows: jnp.mean(rows, axis=0)
        first, low, high = map(mean, jax.vmap(lambda *one: levels_at(inner, x, _Draws(*one), level))(*draws))
        return first + (high - low) / chances[level], level + 1


def levels_at(inner: Inner, x: Any, drawn: _Draws, level: Any) -> tuple[Array, Array, Array]:
    """``v_0``, ``v_level`` and ``v_{level + 1}`` at one context, from one path of EPOCH-GD and the same draws."""
    xi, eta, key = drawn
    for_epochs, for_series = jax.random.split(key)
    begins = jnp.stack([jnp.zeros_like(level), jnp.ones_like(level), level + 1])

    def piece(y: Any, ends: Any) -> Any:  # compiled once for all three
        y = inner.epochs(x, y, xi, for_epochs, *ends)
        return y, y

    _, points = jax.lax.scan(piece, inner.start, (begins, jnp.append(begins[1:], level + 2)))
    first, low, high = jax.vmap(lambda y: inner.hypergradient(x, y, xi, eta, for_series))(points)
    return first, low, high


@eqx.filter_jit
def _advance(method: Nested, inner: Inner, upper: Level, x: Any, bounds: Any, lengths: Any, keys: Any) -> Any:
    """Some outer steps: ``x``, the mean of the estimates, and the last epoch that each ran."""

    def one(x: Any, given: tuple) -> Any:
        length, key = given
        for_draws, for_level = jax.random.split(key)
        slope, level = method.estimate(inner, x, _drawn(upper, for_draws, method.batch), for_level)
        return jnp.clip(x - length * slope, *bounds), (slope, level)

    x, (slopes, levels) = jax.lax.scan(one, x, (lengths, keys))
    return x, jnp.mean(slopes, axis=0), levels


@eqx.filter_jit
def _slope_at(method: Nested, inner: Inner, upper: Level, x: Any, key: Array) -> Array:
    return method.estimate(inner, x, _drawn(upper, key, method.batch), key)[0]


@eqx.filter_jit
def _curvatures(functions: AtContext, noise: Any, xi: Any, x: Any, y: Any, key: Array, few: int) -> Any:
    def one(context: Any, key: Array) -> Any:
        rows = context, noise(key, context, few), jnp.full(few, 1 / few, y.dtype)
        return jnp.linalg.eigvalsh(functions.hessian(x, y, *rows))

    return jax.vmap(one)(xi, jax.random.split(key, len(xi)))


def _curvature(functions: AtContext, noise: Any, xi: Any, x: Array, y: Array, key: Array) -> tuple[Array, Array]:
    """The least and the largest curvature of ``g`` in ``y`` at the start, over a few contexts."""
    few = 32
    some = jnp.asarray(np.asarray(xi)[np.linspace(0, len(xi) - 1, few).astype(int)])
    values = _curvatures(functions, noise, some, x, y, key, few)
    return jnp.min(values), jnp.max(values)
