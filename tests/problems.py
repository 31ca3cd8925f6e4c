"""Problems the tests share, and reference computations that use nothing of the solvers.

A problem here is a callable pytree with its numbers in arrays, so that one compiled program serves a whole family: what
takes time in a test is compiling. Use the same number of samples and the same basis where a statement does not depend
on them.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import cobilevel as cb

LINE, AROUND = cb.Interval(0.0, 1.0), cb.Interval(-1.0, 1.0)
ROWS = 512  # a power of two: programs that draw batches are half as large
_RNG = np.random.default_rng(0)
XI, NOISE = _RNG.uniform(size=ROWS), _RNG.normal(size=ROWS)


def numbers(values):
    """A field of a module: an array of floats."""
    return jnp.asarray(values, float)


def row(*values):
    """Coefficients of ``1, xi, xi^2, exp(rate xi)``; those left out are 0."""
    return np.array([*values, *[0.0] * (4 - len(values))])


def _functions(xi, rate, dtype):
    xi = xi.astype(dtype)
    return jnp.stack([jnp.ones_like(xi), xi, xi**2, jnp.exp(rate * xi)])


def only(weight, value):
    """`value` where the weight is not zero, else 0: so that nothing overflows in a term that is not there."""
    return jnp.where(weight != 0, value, 0)


class Line(eqx.Module):
    """A lower level: ``weight (y - x P(xi) - Q(xi) - noise eta)^2``, with ``P`` (one row for each ``x``) in `slope` and
    ``Q`` in `level`. Its policy is known."""

    slope: jax.Array = eqx.field(converter=lambda v: jnp.atleast_2d(numbers(v)), default=(0.0, 1.0, 0.0, 0.0))
    level: jax.Array = eqx.field(converter=numbers, default=(0.0, 0.0, 0.0, 0.0))
    noise: jax.Array = eqx.field(converter=numbers, default=1.0)
    weight: jax.Array = eqx.field(converter=numbers, default=1.0)
    rate: jax.Array = eqx.field(converter=numbers, default=1.0)

    def policy(self, x, xi):
        """The minimiser where the noise is zero on the average."""
        x = jnp.atleast_1d(x)
        own = jax.tree.map(lambda a: a.astype(x.dtype), self)
        return (x @ own.slope + own.level) @ _functions(xi, own.rate, x.dtype)

    def __call__(self, x, y, xi, eta):
        own = jax.tree.map(lambda a: a.astype(y.dtype), self)
        noise = 0 if eta is None else own.noise * eta.astype(y.dtype)
        return own.weight * (y - own.policy(jnp.asarray(x, y.dtype), xi) - noise) ** 2


class Aim(eqx.Module):
    """An upper level: ``scale (pull (y - R(xi) - noise eta)^2 + T(xi) y + ridge |x - centre|^2 + push x + shift)``.

    ``R`` in `target`, ``T`` in `tilt`; and ``rise (e^x - 2 x)``, ``fall (- e^x)``, ``step [x > 1]``, ``wall`` below
    ``x = -1/2``, each where its weight is not zero.
    """

    target: jax.Array = eqx.field(converter=numbers, default=(1.0, 0.0, 0.0, 0.0))
    ridge: jax.Array = eqx.field(converter=numbers, default=0.1)
    centre: jax.Array = eqx.field(converter=numbers, default=0.0)
    pull: jax.Array = eqx.field(converter=numbers, default=1.0)
    noise: jax.Array = eqx.field(converter=numbers, default=0.0)
    tilt: jax.Array = eqx.field(converter=numbers, default=(0.0, 0.0, 0.0, 0.0))
    push: jax.Array = eqx.field(converter=numbers, default=0.0)
    scale: jax.Array = eqx.field(converter=numbers, default=1.0)
    shift: jax.Array = eqx.field(converter=numbers, default=0.0)
    rise: jax.Array = eqx.field(converter=numbers, default=0.0)
    fall: jax.Array = eqx.field(converter=numbers, default=0.0)
    step: jax.Array = eqx.field(converter=numbers, default=0.0)
    wall: jax.Array = eqx.field(converter=numbers, default=0.0)
    rate: jax.Array = eqx.field(converter=numbers, default=1.0)

    def __call__(self, x, y, xi, eta):
        own, x = jax.tree.map(lambda a: a.astype(y.dtype), self), jnp.asarray(x, y.dtype)
        phi = _functions(xi, own.rate, y.dtype)
        noise = 0 if eta is None else own.noise * eta.astype(y.dtype)
        value = own.pull * (y - own.target @ phi - noise) ** 2 + own.tilt @ phi * y + own.shift
        value += own.ridge * jnp.sum((x - own.centre) ** 2) + own.push * jnp.sum(x)
        value += own.rise * jnp.sum(jnp.exp(only(own.rise, x)) - 2 * x) - own.fall * jnp.sum(jnp.exp(only(own.fall, x)))
        value += own.step * jnp.sum((x > 1).astype(y.dtype)) + own.wall * jnp.sum(jnp.maximum(-x - 0.5, 0) ** 2)
        return own.scale * value


class Bent(eqx.Module):
    """Lower levels without a proper minimiser, weighted: pick one."""

    concave: jax.Array = eqx.field(converter=numbers, default=0.0)
    flat: jax.Array = eqx.field(converter=numbers, default=0.0)
    wells: jax.Array = eqx.field(converter=numbers, default=0.0)
    saddle: jax.Array = eqx.field(converter=numbers, default=0.0)
    unbounded: jax.Array = eqx.field(converter=numbers, default=0.0)
    decaying: jax.Array = eqx.field(converter=numbers, default=0.0)

    def __call__(self, x, y, xi, eta):
        well, ditch, tail = only(self.wells, y), only(self.saddle, y), only(self.decaying, y)
        return (
            self.concave * (-(y**2) + x * y)
            + self.flat * (x - xi) ** 2
            + self.wells * ((well**2 - 1) ** 2 - 2 * xi * well + x * well)
            + self.saddle * (ditch**4 / 4 - ditch**2 / 2)
            + self.unbounded * (y * (1 + x**2) + xi * y)
            + self.decaying * jnp.exp(-tail * (1 + x**2))
        )


def scalar(lower=None, upper=None, x0=0.0, y0=0.0, domain=LINE, **options):
    """A problem of the families above, ``(y - x xi - eta)^2`` and ``(y - 1)^2 + x^2 / 10`` where nothing is said."""
    return cb.Problem(Aim() if upper is None else upper, Line() if lower is None else lower, x0, y0, domain, **options)


def joint(noise=0.1, xi=XI, rows=ROWS):
    """Joint samples with normal noise of that size, as many as usual."""
    return cb.Samples(xi[:rows], noise * NOISE[:rows])


def single(tree):
    """A problem, or data, with all its numbers in single precision."""
    short = lambda a: a.astype(jnp.float32) if isinstance(a, jax.Array) and a.dtype == jnp.float64 else a
    return jax.tree.map(short, tree)


class Repacked(eqx.Module):
    """An objective of arrays as one of pytrees: ``x`` a dict, ``y`` a tuple."""

    function: eqx.Module

    @staticmethod
    def x(x):
        return jnp.concatenate([x["first"], x["rest"].ravel()])

    @staticmethod
    def y(y):
        return jnp.concatenate([y[0][None], y[1]])

    def __call__(self, x, y, xi, eta):
        return self.function(self.x(x), self.y(y), xi, eta)


def as_pytrees(problem):
    """The quadratic problem with ``x`` a dict and ``y`` a tuple: the same numbers in other clothes."""
    return (
        cb.Problem(
            upper=Repacked(problem.upper),
            lower=Repacked(problem.lower),
            x0={"first": jnp.zeros(1), "rest": jnp.zeros((2, 2))},
            y0=(jnp.zeros(()), jnp.zeros(2)),
            domain=problem.domain,
        ),
        Repacked.x,
        jax.vmap(Repacked.y),
    )


def curved(x, y, xi, eta):
    """A lower objective that is strongly convex but far from quadratic, with mixed pytrees."""
    gap = y["a"] - jnp.sin(x["p"] * xi) - eta
    return jnp.sum(jnp.cosh(gap)) + jnp.sum(y["b"] ** 2) + 0.3 * jnp.sum(y["b"] ** 4) - y["b"][0] * x["q"][1] * xi


def curved_upper(x, y, xi, eta):
    return (
        jnp.sum(jnp.tanh(y["a"] - xi) ** 2) + jnp.sum((y["b"] - x["q"]) ** 2) * jnp.exp(0.1 * eta) + 0.1 * x["p"] ** 2
    )


def curved_problem(count=60, seed=0):
    rng = np.random.default_rng(seed)
    problem = cb.Problem(
        curved_upper,
        curved,
        x0={"p": jnp.array(0.7), "q": jnp.array([0.2, -0.4])},
        y0={"a": jnp.zeros(()), "b": jnp.zeros(2)},
        domain=AROUND,
    )
    samples = cb.Samples(rng.uniform(-1, 1, count), 0.3 * rng.standard_normal(count), rng.uniform(0.5, 2, count))
    return problem, samples


def bernstein(z):
    """The parameter of the ellipse through a singularity, whose powers coefficients on ``[-1, 1]`` fall as."""
    root = np.sqrt(complex(z) ** 2 - 1)
    return max(abs(z + root), abs(z - root))
