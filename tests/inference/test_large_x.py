"""A decision of many numbers: standard errors by products, against dense derivatives; how it prints and is solved."""

import importlib
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.inference import around, galerkin, standard_errors, uncertainty
from cobilevel.judge import comparison
from cobilevel.study import Study, precision_for

certify = importlib.import_module("cobilevel.judge.certify")

WIDTH, INPUTS, ROWS, RIDGE, DECAY = 4, 3, 300, 0.05, 1e-2


def hidden(x, u):
    return jnp.tanh(x["weight"] @ u + x["bias"])


def lower(x, y, xi, eta):
    return (y @ hidden(x, eta["u"]) - eta["t"]) ** 2 + RIDGE * jnp.sum(y**2)


def upper(x, y, xi, eta):
    return (y @ hidden(x, eta["u"]) - eta["t"]) ** 2 + DECAY * sum(jnp.sum(part**2) for part in x.values())


def samples(rows=ROWS, inputs=INPUTS, seed=0):
    rng = np.random.default_rng(seed)
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

    bend = jax.hessian(lambda x: jnp.mean(each(upper, x, policy(x)[0])))
    H, scores = map(np.asarray, jax.jit(lambda x: (bend(x), jax.jacfwd(terms)(x)))(flat))  # one program
    noise = (scores - scores.mean(axis=0)).T @ (scores - scores.mean(axis=0)) / ROWS**2
    return H, np.linalg.inv(H) @ noise @ np.linalg.inv(H)


def test_standard_errors_by_products_are_those_of_dense_matrices(layer, by_products_alone, monkeypatch):
    monkeypatch.setattr(around.Around, "bend_error", lambda self: np.zeros(len(self.directions)))
    known, (H, covariance) = layer.uncertainty, dense(layer)
    assert not known.why_not
    assert np.isfinite(known.error).all()
    np.testing.assert_allclose(known.hessian, H, rtol=0, atol=1e-8 * np.abs(H).max())
    np.testing.assert_allclose(known.error, np.sqrt(np.diag(covariance)), rtol=1e-6, atol=1e-9)


def test_a_large_x_prints_array_by_array():
    known = uncertainty.unknown({"weight": np.ones((16, 8)), "bias": np.zeros(16)}, "not computed.")
    assert len(known.table().splitlines()) == 3
    assert "x['weight']  (16, 8)  11.3137" in known.table()
    assert len(known.table(every=True).splitlines()) == 1 + 144
    assert "estimate" in uncertainty.unknown(np.ones(5), "not computed.").table()


def test_what_is_determined_of_each_array():
    lost = np.zeros((2, 5))
    lost[0, :3], lost[1, 4] = 1.0, 1.0  # x['a'] has three numbers
    x = {"a": np.zeros(3), "b": np.zeros(2)}
    leaves = uncertainty.leaves_of(x, lost)
    assert leaves == (("x['a']", (3,), 2), ("x['b']", (2,), 1))


def test_newton_forms_the_curvature_of_a_large_x():
    """Twice as many coordinates as pairs."""
    solution = cb.solve(problem(10), samples(), basis=cb.Chebyshev(3))
    assert solution.converged
    assert solution.stats["steps"] < 100


@pytest.mark.parametrize("x0", ["mlp", "list"])
def test_modules_keep_their_functions(x0, tmp_path):
    key = jax.random.PRNGKey(0)
    layers = [eqx.nn.Linear(INPUTS, 2, key=key), jnp.tanh]
    start, call = {
        "mlp": (eqx.nn.MLP(INPUTS, 2, 2, 1, activation=jnp.tanh, key=key), lambda x, u: x(u)),
        "list": (layers, lambda x, u: x[1](x[0](u))),
    }[x0]

    def fit(x, y, xi, eta):
        return (y @ call(x, eta["u"]) - eta["t"]) ** 2 + 0.1 * jnp.sum(y**2)

    size = lambda x: 1e-2 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x))
    f = lambda x, y, xi, eta: fit(x, y, xi, eta) + size(x)
    stated = cb.Problem(f, fit, x0=start, y0=np.zeros(2), domain=cb.Interval(0.0, 1.0))
    solution = cb.solve(stated, samples(100), basis=cb.Chebyshev(2), steps=1)
    assert type(solution.x) is type(start)
    solution.save(tmp_path / "a.npz")
    if x0 == "list":  # the lambda in Equinox's MLP is not pickled by anyone
        assert jax.tree.structure(pickle.loads(pickle.dumps(solution.x))) == jax.tree.structure(solution.x)
    again = cb.load(tmp_path / "a.npz", stated)
    np.testing.assert_allclose(call(again.x, jnp.ones(INPUTS)), call(solution.x, jnp.ones(INPUTS)), rtol=1e-6)


def test_whole_numbers_in_x_are_refused_in_words():
    with pytest.raises(TypeError, match=r"x0\['k'\] must be a float array.*Constants belong in the functions"):
        cb.Problem(upper, lower, x0={"w": np.ones(3), "k": 3}, y0=0.0, domain=cb.Interval(0.0, 1.0))


def test_kinks_are_seen_a_standard_error_away(layer, by_products_alone):
    kinked = lambda x, y, xi, eta: (
        jnp.abs(y @ hidden(x, eta["u"]) - eta["t"]) + DECAY * sum(jnp.sum(part**2) for part in x.values())
    )
    known = cb.solve(problem(f=kinked), samples(), basis=cb.Chebyshev(3), steps=40).uncertainty
    assert "kink" in known.why_not


def test_a_certificate_by_products_is_that_by_differences(layer, monkeypatch):
    """Of 144 numbers it took 900 solves of the lower level; none is taken along single coordinates now."""
    stated, fresh = problem(), samples(seed=1)
    near = cb.certify(stated, layer, fresh, mode="held-out")
    monkeypatch.setattr(certify, "too_large", lambda study, joint: "it is to be by products")
    monkeypatch.setattr(around, "look_by_differences", lambda *_: pytest.fail("differences along coordinates"))
    found = cb.certify(stated, layer, fresh, mode="held-out")
    assert float(found.objective) == pytest.approx(float(near.objective), rel=1e-9)
    assert found.objective.error == pytest.approx(near.objective.error, rel=1e-6)
    assert float(found.gradient_norm) == pytest.approx(float(near.gradient_norm), rel=0.5)
    assert found.regret.total.high == pytest.approx(near.regret.total.high, rel=0.5)
    assert "products of neighbouring samples, since it is to be by products" in str(found)


@pytest.mark.parametrize(("width", "rows"), [(12, 2000), (1, 2000)])
def test_differences_are_not_taken_where_they_cost_more_than_the_solve(width, rows):
    inputs = 144 // width
    stated = problem(width, inputs - (width > 1))
    study = Study.of(stated, samples(rows, inputs - (width > 1)), precision_for(stated, samples(8), None))
    assert "derivatives would be computed" in galerkin.too_large(study, False)


def test_thousands_of_numbers_are_judged_without_their_covariance():
    stated, data = problem(2, 1100), samples(200, 1100)
    solution = cb.solve(stated, data, basis=cb.Chebyshev(2), steps=2)
    assert np.isfinite(solution.uncertainty.value_error)
    found = cb.certify(stated, solution, samples(200, 1100, seed=1))
    assert found.gradient_norm.low < found.gradient_norm.high < np.inf
    assert found.regret is None
    assert "the regret, since x has 2202 coordinates" in str(found)
    assert np.isfinite(found.objective.error)


def test_groups_left_out_are_as_many_directions_as_there_is_noise():
    rng, free = np.random.default_rng(0), np.arange(30) > 3
    values = rng.normal(size=(5, 30))
    few = comparison.NoisyVector.left_out(values.mean(axis=0), values)
    all_of_it = comparison.NoisyVector(values.mean(axis=0), comparison.jackknife(values))
    assert len(few.covariance) == 6
    for one, other in ((few.on(free), all_of_it.on(free)), (few.through(np.eye(30)), all_of_it.through(np.eye(30)))):
        assert np.linalg.norm(one[0]) == pytest.approx(np.linalg.norm(other[0]))
        assert one[0] @ one[1] @ one[0] == pytest.approx(other[0] @ other[1] @ other[0])
        assert np.trace(one[1]) == pytest.approx(np.trace(other[1]))


def test_a_layer_takes_no_functions_for_its_weights():
    """``f`` tells them apart with the policy held; there were as many functions as weights, up to what the samples
    support. What is seen through the policy alone takes one each."""
    stated, data = problem(1, 8), samples(400, 8)
    solution = cb.solve(stated, data, steps=2)
    assert solution.basis.size < 9
    assert "not fully determined" not in str(solution)
    f = lambda x, y, xi, eta: y**2 / 2 + DECAY * jnp.sum(x**2)
    g = lambda x, y, xi, eta: (y - eta["u"] @ x - eta["t"]) ** 2
    through = cb.Problem(f, g, np.zeros(8), 0.0, cb.Interval(0.0, 1.0))
    assert cb.solve(through, data, steps=2).basis.size >= 8


def test_a_run_that_ended_early_and_bounds_count_here_too():
    rng = np.random.default_rng(0)
    dx, aim = 210, rng.uniform(0.0, 1.0, 210)
    samples = cb.Samples(rng.uniform(0, 1, 300), rng.normal(size=(300, dx)))
    upper = lambda x, y, xi, eta: jnp.sum((x - aim - eta) ** 2) + (y - x[0]) ** 2
    problem = cb.Problem(
        upper, lambda x, y, xi, eta: (y - xi) ** 2, jnp.ones(dx), 0.0, cb.Interval(0, 1), x_bounds=(0.0, 2.0)
    )
    minimum = np.asarray(cb.solve(problem, samples, basis=cb.Chebyshev(2)).x)
    early = cb.solve(problem, samples, basis=cb.Chebyshev(2), steps=1).uncertainty
    assert np.mean(np.abs(early.x - minimum) > 3 * np.sqrt(np.diag(early.covariance))) > 0.5
    low, high = early.interval
    assert np.mean((low <= minimum) & (minimum <= high)) > 0.95
    assert low.min() >= 0.0
    assert "ended early" in early.remarks[0]
