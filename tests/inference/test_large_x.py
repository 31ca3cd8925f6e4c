"""A decision of many numbers: standard errors by products, against dense derivatives; how it prints and is solved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.inference import by_products, standard_errors

WIDTH, INPUTS, ROWS, RIDGE, DECAY = 4, 3, 300, 0.05, 1e-2


def hidden(x, u):
    return jnp.tanh(x["weight"] @ u + x["bias"])


def lower(x, y, xi, eta):
    return (y @ hidden(x, eta["u"]) - eta["t"]) ** 2 + RIDGE * jnp.sum(y**2)


def upper(x, y, xi, eta):
    return (y @ hidden(x, eta["u"]) - eta["t"]) ** 2 + DECAY * sum(jnp.sum(part**2) for part in x.values())


def samples(rows=ROWS, inputs=INPUTS):
    rng = np.random.default_rng(0)
    xi, u = rng.uniform(0, 1, rows), rng.normal(size=(rows, inputs))
    t = np.tanh(u[:, 0] - u[:, 1]) * np.sin(3 * xi) + np.tanh(u[:, 2]) * xi + 0.1 * rng.normal(size=rows)
    return cb.Samples(xi, {"u": u, "t": t})


def problem(width=WIDTH, inputs=INPUTS, f=upper):
    weight = np.random.default_rng(1).normal(size=(width, inputs))
    x0 = {"weight": weight, "bias": np.zeros(width)}
    return cb.Problem(f, lower, x0=x0, y0=np.zeros(width), domain=cb.Interval(0.0, 1.0))


@pytest.fixture(scope="module")
def layer():
    """A layer of 16 numbers, solved."""
    return cb.solve(problem(), samples(), basis=cb.Chebyshev(3))


@pytest.fixture
def by_products_alone(monkeypatch):
    monkeypatch.setattr(standard_errors, "too_large", lambda study, joint: "it is to be by products")


def dense(solution):
    """The curvature of the reduced objective and the sandwich of ``x``, by automatic derivatives of dense solves."""
    data, phi = samples(), np.asarray(solution.basis(samples().xi))
    flat, shaped = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.asarray, solution.x))

    def policy(x):
        rows = jnp.einsum("nk,na->nka", phi, jax.vmap(lambda u: hidden(shaped(x), u))(data.eta["u"]))
        rows = rows.reshape(ROWS, -1)
        gram = rows.T @ rows / ROWS + RIDGE * jnp.kron(phi.T @ phi / ROWS, jnp.eye(WIDTH))
        return jnp.linalg.solve(gram, rows.T @ data.eta["t"] / ROWS).reshape(phi.shape[1], WIDTH), 2 * gram

    each = lambda h, x, W: jax.vmap(lambda p, xi, eta: h(shaped(x), p @ W, xi, eta))(phi, data.xi, data.eta)

    def terms(x):
        W, hessian = policy(x)
        pull = jax.grad(lambda W: jnp.mean(each(upper, x, W)))(W)
        v = jnp.linalg.solve(hessian, pull.ravel()).reshape(W.shape)
        return each(upper, x, W) - jax.jvp(lambda W: each(lower, x, W), (W,), (v,))[1]

    H = np.asarray(jax.hessian(lambda x: jnp.mean(each(upper, x, policy(x)[0])))(flat))
    scores = np.asarray(jax.jacfwd(terms)(flat))
    noise = (scores - scores.mean(axis=0)).T @ (scores - scores.mean(axis=0)) / ROWS**2
    return H, np.linalg.inv(H) @ noise @ np.linalg.inv(H)


def test_standard_errors_by_products_are_those_of_dense_matrices(layer, by_products_alone, monkeypatch):
    monkeypatch.setattr(by_products.Sampled, "bend_error", lambda self, directions: np.zeros(len(directions)))
    known, (H, covariance) = layer.uncertainty, dense(layer)
    assert not known.why_not
    assert np.isfinite(known.error).all()
    np.testing.assert_allclose(known.hessian, H, rtol=0, atol=1e-8 * np.abs(H).max())
    np.testing.assert_allclose(known.error, np.sqrt(np.diag(covariance)), rtol=1e-6)
