"""Problems the tests share, and reference computations that use nothing of the solvers."""

import jax
import jax.numpy as jnp
import numpy as np

import cobilevel as cb


def as_pytrees(problem):
    """The quadratic problem with ``x`` a dict and ``y`` a tuple: the same numbers in other clothes."""
    pack_x = lambda x: jnp.concatenate([x["first"], x["rest"].ravel()])
    pack_y = lambda y: jnp.concatenate([y[0][None], y[1]])
    return (
        cb.Problem(
            upper=lambda x, y, xi, eta: problem.upper(pack_x(x), pack_y(y), xi, eta),
            lower=lambda x, y, xi, eta: problem.lower(pack_x(x), pack_y(y), xi, eta),
            x0={"first": jnp.zeros(1), "rest": jnp.zeros((2, 2))},
            y0=(jnp.zeros(()), jnp.zeros(2)),
            domain=problem.domain,
        ),
        pack_x,
        jax.vmap(pack_y),
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
        domain=cb.Interval(-1.0, 1.0),
    )
    samples = cb.Samples(rng.uniform(-1, 1, count), 0.3 * rng.standard_normal(count), rng.uniform(0.5, 2, count))
    return problem, samples
