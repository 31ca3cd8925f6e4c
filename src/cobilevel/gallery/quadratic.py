r"""Random quadratic problems in which everything is known in closed form.

$$g = \tfrac12 |y - C(\xi) x - \eta^{low}|^2_{A(\xi)}, \qquad
f = \tfrac12 |y - \eta^{up}|^2_Q + \tfrac{\rho}{2} |x - \bar x|^2,$$
with $\eta^{low} = c(\xi) + $ noise and $\eta^{up} = \tau(\xi) + $ noise. The lower objective does not know $c$: only
the conditional mean of the noise shows it, and each context is seen once. So $y^\star(x, \xi) = C(\xi) x + c(\xi)$.
The functions $C, c, \tau$ are sums of $\exp(a_k \cdot \xi)$, whose products integrate exactly, one dimension at a time.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..problem import Box, Distribution, Domain, Interval, Levels, Mixture, Problem, Samples, TruncatedNormal, Uniform


@dataclass(frozen=True)
class Instance:
    """A ready problem, with data to solve it from, data to judge it by, and the known truth.

    **Arguments:**

    - `problem`: a ``Problem``.
    - `train`, `test`: its data.
    - `truth`: an object with `x` and whatever else is known.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> case.train.count, case.test.count
    (300, 300)
    >>> case.truth.x.shape
    (2,)
    """

    problem: Problem
    train: Any
    test: Any
    truth: Any

    @property
    def fresh(self) -> Any:
        """Data for ``certify``: the test data, with the lower level's data if the test data are for the upper only."""
        (train, test), own = (self.train, self.test), lambda data: data.lower is not data.upper
        return Levels(test, train.lower) if own(train) and not own(test) else test


class Waves(eqx.Module):
    r"""$\sum_k M_k \exp(a_k \cdot \xi)$, array-valued; the rates are shared by all functions of an instance."""

    rates: Float[Array, "K d"]
    coefficients: Float[Array, "K ..."]

    def __call__(self, xi: Float[Array, "..."]) -> Float[Array, "..."]:
        xi = xi[..., None] if xi.ndim == 0 else xi
        return jnp.tensordot(jnp.exp(self.rates @ xi), self.coefficients, axes=1)


class QuadraticLower(eqx.Module):
    """``g``: the distance of ``y`` to ``C(xi) x + eta_low`` in the metric ``A(xi)``."""

    slope: Waves
    rotation: Float[Array, "dy dy"]
    spectrum: Float[Array, " dy"]
    tilt: Float[Array, "dy d"]

    def metric(self, xi: Float[Array, "..."]) -> Float[Array, "dy dy"]:
        """``A(xi)``: fixed axes, weights that vary with the context by a factor of at most about 3."""
        weight = self.spectrum * jnp.exp(0.5 * jnp.sin(self.tilt @ jnp.atleast_1d(xi)))
        return (self.rotation * weight) @ self.rotation.T

    def __call__(self, x, y, xi, eta):
        gap = y - self.slope(xi) @ x - eta["lower"]
        return gap @ self.metric(xi) @ gap / 2


class QuadraticUpper(eqx.Module):
    """``f``: the distance of ``y`` to ``eta_up``, and of ``x`` to its centre."""

    Q: Float[Array, "dy dy"]
    rho: Float[Array, ""]
    centre: Float[Array, " dx"]

    def __call__(self, x, y, xi, eta):
        gap = y - eta["upper"]
        return gap @ self.Q @ gap / 2 + self.rho * jnp.sum((x - self.centre) ** 2) / 2


class QuadraticNoise(eqx.Module):
    """``eta`` given a context: normal around ``tau(xi)`` and ``c(xi)``."""

    offset: Waves
    target: Waves
    upper_std: Float[Array, ""]
    lower_std: Float[Array, ""]

    def __call__(self, key: Array, xi: Array, size: int) -> PyTree:
        for_upper, for_lower = jax.random.split(key)
        around = lambda mean, std, k: mean + std.astype(xi.dtype) * jax.random.normal(k, (size, len(mean)), xi.dtype)
        upper = around(self.target(xi), self.upper_std, for_upper)
        return {"upper": upper, "lower": around(self.offset(xi), self.lower_std, for_lower)}


class QuadraticTruth(eqx.Module):
    """Closed forms: the policy, the objective, its gradient and minimiser, and the optimum of a finite sample."""

    lower: QuadraticLower
    upper: QuadraticUpper
    offset: Waves
    target: Waves
    contexts: Distribution
    noise: tuple[Any, Any]
    x: Float[Array, " dx"]
    _hessian: Float[Array, "dx dx"]
    _linear: Float[Array, " dx"]
    _constant: Float[Array, ""]

    def y(self, x: Float[Array, " dx"], xi: Float[Array, "n ..."]) -> Float[Array, "n dy"]:
        """``C(xi) x + c(xi)`` for each context."""
        return _policies(self.lower.slope, self.offset, jnp.asarray(x), jnp.asarray(xi))

    def F(self, x: Float[Array, " dx"]) -> Float[Array, ""]:
        """The population upper objective."""
        return x @ self._hessian @ x / 2 + self._linear @ x + self._constant

    objective = F

    def gradient(self, x: Float[Array, " dx"]) -> Float[Array, " dx"]:
        """The gradient of ``F``."""
        return self._hessian @ x + self._linear

    def sample_optimum(self, features: Any, upper: Samples, lower: Samples) -> tuple[np.ndarray, np.ndarray]:
        """``(x, W)`` optimal for the reduced problem on finite samples, by normal equations in NumPy.

        `features` maps contexts to ``(n, N)``; `upper` and `lower` are the rows each level sees.
        """
        dx, dy = len(self.upper.centre), len(self.upper.Q)
        phi = np.asarray(features(lower.xi))
        share = lower.shares()
        metric, slope = (np.asarray(part) for part in _metrics_and_slopes(self.lower, jnp.asarray(lower.xi)))
        shift = np.asarray(lower.eta["lower"])
        count = phi.shape[1] * dy
        gram = np.einsum("n,nk,nab,nl->kalb", share, phi, metric, phi, optimize=True).reshape(count, count)
        by_x = np.einsum("n,nk,nab,nbj->kaj", share, phi, metric, slope, optimize=True).reshape(count, dx)
        by_one = np.einsum("n,nk,nab,nb->ka", share, phi, metric, shift, optimize=True).reshape(count)
        W_x, W_one = np.linalg.solve(gram, by_x), np.linalg.solve(gram, by_one)

        phi = np.asarray(features(upper.xi))
        share = upper.shares()
        Q, rho, centre = (np.asarray(v) for v in (self.upper.Q, self.upper.rho, self.upper.centre))
        B = np.einsum("nk,kaj->naj", phi, W_x.reshape(-1, dy, dx))
        r = np.einsum("nk,ka->na", phi, W_one.reshape(-1, dy)) - np.asarray(upper.eta["upper"])
        hessian = np.einsum("n,nai,ab,nbj->ij", share, B, Q, B, optimize=True) + rho * np.eye(dx)
        linear = np.einsum("n,nai,ab,nb->i", share, B, Q, r, optimize=True) - rho * centre
        x = np.linalg.solve(hessian, -linear)
        return x, (W_x @ x + W_one).reshape(-1, dy)


def _law(kind: Any, domain: Domain) -> Distribution:
    d = domain.dimension
    if isinstance(kind, Distribution):
        return kind
    if kind == "uniform":
        return Uniform(domain)
    if kind == "normal":
        return TruncatedNormal(domain, np.full(d, 0.2), np.full(d, 0.5))
    if kind == "mixture":
        parts = (TruncatedNormal(domain, np.full(d, -0.5), np.full(d, 0.3)), Uniform(domain))
        return Mixture(components=parts, weights=np.array([0.6, 0.4]))
    raise ValueError(f'contexts must be "uniform", "normal", "mixture" or a distribution, got {kind!r}.')


def quadratic(
    seed: int,
    dx: int = 5,
    dy: int = 3,
    dimension: int | None = None,
    train: int = 4000,
    test: int = 4000,
    condition: float = 10.0,
    noise: tuple[float, float] = (0.1, 0.3),
    contexts: Any = "uniform",
) -> Instance:
    """A random quadratic instance on ``[-1, 1]`` (or ``[-1, 1]^dimension``).

    **Arguments:**

    - `dx`, `dy`: sizes of ``x`` and ``y``; `dimension`: that of the context, ``None`` for scalar contexts.
    - `condition`: ratio of the largest to the smallest curvature of ``g`` in ``y``, before it varies with the context.
    - `noise`: standard deviations in the upper and the lower level.
    - `contexts`: ``"uniform"``, ``"normal"`` (truncated), ``"mixture"``, or a distribution.
    - `seed`: which instance.
    - `train`, `test`: how many samples.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> case.problem.domain
    Interval(-1.0, 1.0)
    """
    rng = np.random.default_rng(seed)
    d = 1 if dimension is None else dimension
    domain = Interval(-1.0, 1.0) if dimension is None else Box(-np.ones(d), np.ones(d))
    law = _law(contexts, domain)
    rates = np.concatenate([np.zeros((1, d)), rng.normal(size=(3, d)) / np.sqrt(d)])
    decay = np.array([1.0, 0.5, 0.5, 0.5])

    def waves(*shape):
        scale = decay.reshape(-1, *[1] * len(shape)) / np.sqrt(max(shape[-1], 1))
        return Waves(jnp.asarray(rates), jnp.asarray(scale * rng.normal(size=(4, *shape))))

    rotation = np.linalg.qr(rng.normal(size=(dy, dy)))[0]
    spectrum = np.geomspace(1.0, condition, dy) if dy > 1 else np.ones(1)
    lower = QuadraticLower(
        waves(dy, dx), jnp.asarray(rotation), jnp.asarray(spectrum), jnp.asarray(rng.normal(size=(dy, d)))
    )
    root = rng.normal(size=(dy, dy)) / np.sqrt(dy)
    upper = QuadraticUpper(
        jnp.asarray(root @ root.T + 0.5 * np.eye(dy)), jnp.asarray(0.1), jnp.asarray(rng.normal(size=dx))
    )
    offset, target = waves(dy), waves(dy)
    truth = _truth(lower, upper, offset, target, law, noise, rates)

    conditional = QuadraticNoise(offset, target, *(jnp.asarray(std) for std in noise))

    def observe(key, count):
        for_contexts, for_noise = jax.random.split(key)
        xi = law.sample(for_contexts, count)
        return Samples(xi, _one_each(conditional, for_noise, xi))

    problem = Problem(upper, lower, x0=jnp.zeros(dx), y0=jnp.zeros(dy), domain=domain, conditional=conditional)
    first, second = jax.random.split(jax.random.key(seed))
    return Instance(problem, observe(first, train), observe(second, test), truth)


@jax.jit
def _policies(slope: Waves, offset: Waves, x: Array, xi: Array) -> Array:
    return jax.vmap(lambda c: slope(c) @ x + offset(c))(xi)


@jax.jit
def _metrics_and_slopes(lower: QuadraticLower, xi: Array) -> tuple[Array, Array]:
    return jax.vmap(lower.metric)(xi), jax.vmap(lower.slope)(xi)


@jax.jit
def _one_each(conditional: QuadraticNoise, key: Array, xi: Array) -> PyTree:
    """One draw at each context: in one program, where operations one by one would each be compiled."""
    keys = jax.random.split(key, len(xi))
    return jax.vmap(lambda k, c: jax.tree.map(lambda a: a[0], conditional(k, c, 1)))(keys, xi)


def _truth(lower, upper, offset, target, law, noise, rates) -> QuadraticTruth:
    r"""Integrates $E \tfrac12 |C x + c - \tau|_Q^2 + \tfrac12 \sigma^2 tr Q + \tfrac\rho2 |x - \bar x|^2$ exactly."""
    sums = rates[:, None] + rates  # E exp(a . xi) for each of them is a product of one-dimensional integrals
    moments = np.zeros(sums.shape[:2])
    for share, nodes, weights in law.rules(64):
        moments += share * np.prod(np.einsum("jq,kljq->klj", weights, np.exp(sums[..., None] * nodes)), axis=-1)
    Q, rho, centre = (np.asarray(v) for v in (upper.Q, upper.rho, upper.centre))
    C = np.asarray(lower.slope.coefficients)
    r = np.asarray(offset.coefficients) - np.asarray(target.coefficients)
    hessian = np.einsum("kl,kai,ab,lbj->ij", moments, C, Q, C) + rho * np.eye(len(centre))
    linear = np.einsum("kl,kai,ab,lb->i", moments, C, Q, r) - rho * centre
    constant = np.einsum("kl,ka,ab,lb->", moments, r, Q, r) / 2 + noise[0] ** 2 * np.trace(Q) / 2
    constant += rho * centre @ centre / 2
    x = np.linalg.solve(hessian, -linear)
    return QuadraticTruth(
        lower, upper, offset, target, law, noise, *(jnp.asarray(v) for v in (x, hessian, linear, constant))
    )


def draw_quadratic(instance: Instance, solution: Any) -> Any:
    """The policy with its 95% interval over the (first) context, and the exact one dashed.

    **Arguments:**

    - `instance`: what ``cb.gallery.quadratic`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4), steps=2)
    >>> figure = cb.gallery.draw_quadratic(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    figure, domain = solution.plot(), instance.problem.domain
    if isinstance(domain, Interval):
        grid = jnp.linspace(*(float(end[0]) for end in domain.bounds), 201)
        exact = figure.axes[0].plot(grid, instance.truth.y(instance.truth.x, grid), "--", color="black", lw=1)
        exact[0].set_label("exact")
        figure.axes[0].legend(frameon=False)
    return figure
