"""Hyper-cleaning: its data, its derivatives, its exact classifiers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special

import cobilevel as cb
from cobilevel.gallery import best_coefficients, images as loader, softmax
from cobilevel.lower import exact_lower
from cobilevel.study import Study

TEMPERATURES = np.array([0.1, 0.7, 3.0, 10.0])


@pytest.fixture(scope="module")
def digits():
    return loader.digits()


@pytest.fixture(scope="module")
def small(digits):
    """64 pixels, 120 and 40 images, in double precision."""
    return cb.gallery.cleaning(0, digits, train=120, validation=40, dtype="float64")


def test_corruption_and_disjoint_levels(digits):
    numbered = np.zeros((4000, 2), np.float32)
    numbered[:, 0] = np.arange(4000)
    labels = np.random.default_rng(0).integers(10, size=4000)
    pool = loader.Images(numbered, labels, numbered[:5], labels[:5], "numbers")
    instance = cb.gallery.cleaning(3, pool, train=3000, validation=800)
    lower, upper, truth = instance.train.lower.eta, instance.train.upper.eta, instance.truth
    rows = np.asarray(lower["image"][:, 0], int), np.asarray(upper["image"][:, 0], int)
    assert len(set(rows[0]) | set(rows[1])) == 3800
    np.testing.assert_array_equal(upper["label"], labels[rows[1]])
    np.testing.assert_array_equal(truth.clean_labels, labels[rows[0]])
    np.testing.assert_array_equal(truth.corrupted, np.asarray(lower["label"]) != labels[rows[0]])
    np.testing.assert_array_equal(lower["index"], np.arange(3000))
    assert np.all(truth.redrawn[truth.corrupted])
    spread = lambda p: 4 * np.sqrt(p * (1 - p) / 3000)
    assert abs(truth.redrawn.mean() - 0.3) < spread(0.3)
    assert abs(truth.corrupted.mean() - 0.27) < spread(0.27)  # one in ten is redrawn as it was
    clean = cb.gallery.cleaning(3, pool, train=3000, validation=800, corruption=0.0)
    assert not clean.truth.redrawn.any()
    np.testing.assert_array_equal(clean.train.lower.eta["image"], lower["image"])


def test_shapes_sizes_and_dtypes(digits):
    instance = cb.gallery.cleaning(0)
    assert instance.problem.x0.shape == (1000,)
    assert instance.problem.y0.shape == (64, 10)
    assert (instance.train.lower.count, instance.train.upper.count, instance.test.count) == (1000, 300, 297)
    assert {leaf.dtype for leaf in jax.tree.leaves(instance.train.lower.eta)} == {
        jnp.dtype("float32"),
        jnp.dtype("int32"),
    }
    assert instance.problem.x0.dtype == instance.problem.y0.dtype == jnp.float32
    other = cb.gallery.cleaning(1, digits)  # one compilation serves both: no array is closed over
    assert jax.tree.structure(instance.problem) == jax.tree.structure(other.problem)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"train": 1400, "validation": 200}, ValueError, "more than the 1500 images"),
        ({"train": 0}, ValueError, "train must be a whole number"),
        ({"corruption": 1.5}, ValueError, "corruption must be a probability"),
        ({"temperatures": (0.0, 1.0)}, ValueError, "temperatures must be positive"),
        ({"regulariser": 0.0}, ValueError, "regulariser must be positive"),
        ({"dtype": "int32"}, TypeError, "dtype must be float32 or float64"),
        ({"images": "letters"}, FileNotFoundError, '"digits", "mnist" or a folder'),
    ],
)
def test_bad_arguments(digits, change, error, words):
    with pytest.raises(error, match=words):
        cb.gallery.cleaning(0, **({"images": digits} | change))
    unnamed = loader.Images(digits.images, digits.labels, digits.test_images, digits.test_labels, "mine")
    with pytest.raises(ValueError, match="train and validation must be given for 'mine'"):
        cb.gallery.cleaning(0, unnamed, train=10)


def test_objectives_are_what_the_paper_states(small):
    """Against the formulas in NumPy, and their gradients against differences."""
    rng = np.random.default_rng(0)
    x, y, xi = rng.normal(size=120), rng.normal(size=(64, 10)), 0.7
    problem, row = small.problem, jax.tree.map(lambda a: a[17], small.train.lower.eta)
    logits = np.asarray(row["image"]) @ y / xi
    entropy = np.log(np.exp(logits).sum()) - logits[int(row["label"])]
    lower = entropy / (1 + np.exp(-x[17])) + 1e-3 * np.sum(y**2)
    for function, stated in ((problem.upper, entropy), (problem.lower, lower)):
        look = jax.jit(lambda x, y, function=function: jax.value_and_grad(function, argnums=(0, 1))(x, y, xi, row))
        value, slopes = look(x, y)
        np.testing.assert_allclose(value, stated, rtol=1e-12)
        toward = rng.normal(size=120), rng.normal(size=(64, 10))
        at = lambda h, look=look, toward=toward: look(x + h * toward[0], y + h * toward[1])[0]
        expected = (at(1e-5) - at(-1e-5)) / 2e-5
        np.testing.assert_allclose(sum(np.vdot(a, b) for a, b in zip(slopes, toward, strict=True)), expected, rtol=1e-7)


def whole_lower(instance, x, xi, y):
    """The mean of ``g`` over all training images and its gradient in ``y``, in NumPy and double precision."""
    eta = jax.tree.map(np.asarray, instance.train.lower.eta)
    pixels, weight = eta["image"].astype(float), 1 / (1 + np.exp(-np.asarray(x, float)))
    y = np.asarray(y, float).reshape(64, 10)
    chances = scipy.special.log_softmax(pixels @ y / xi, axis=1)
    value = -weight @ chances[np.arange(len(x)), eta["label"]] / len(x) + 1e-3 * np.sum(y**2)
    excess = weight[:, None] * (np.exp(chances) - np.eye(10)[eta["label"]])
    return value, (pixels.T @ excess / (xi * len(x)) + 2e-3 * y).ravel()


def relative_slope(instance, x, xi, y):
    at = lambda point: np.linalg.norm(whole_lower(instance, x, xi, point)[1])
    return at(y) / at(np.zeros(640))


def test_exact_classifiers_minimise_what_the_library_minimises(small):
    """One small problem, three solvers."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=120)) * 2
    found = small.truth.fit(x, TEMPERATURES, tolerance=1e-10).y
    np.testing.assert_allclose(small.truth.y(x, TEMPERATURES), found, rtol=1e-3, atol=1e-4)
    library = exact_lower(Study.of(small.problem, small.train), x, jnp.asarray(TEMPERATURES[2:3]))
    np.testing.assert_allclose(found[2:3], library.y, rtol=1e-6, atol=1e-7)
    for xi, y in zip(TEMPERATURES, found, strict=True):
        assert relative_slope(small, x, xi, y) <= 1e-10
    scipys = scipy.optimize.minimize(
        lambda v: whole_lower(small, x, TEMPERATURES[0], v),  # the coldest is the hardest
        np.zeros(640),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 6000, "ftol": 1e-15, "gtol": 1e-9},
    )
    np.testing.assert_allclose(found[0].ravel(), scipys.x, atol=1e-4 * np.abs(scipys.x).max())


def test_exact_classifiers_in_single_precision(digits):
    """All of the digits: the gradient promised is there when computed anew in double precision."""
    instance = cb.gallery.cleaning(0, digits)
    x = jnp.where(instance.truth.corrupted, -3.0, 3.0).astype(jnp.float32)
    found = instance.truth.fit(x, TEMPERATURES)
    assert found.y.dtype == jnp.float32
    assert float(found.gradient.max()) <= 1e-6
    for xi, y in zip(TEMPERATURES, found.y, strict=True):
        assert relative_slope(instance, x, xi, y) <= 2e-6
    again = instance.truth.fit(x, TEMPERATURES, start=found.y)
    assert int(again.rounds) == 0
    beyond = instance.truth.fit(x, TEMPERATURES, tolerance=1e-12)  # more than rounding lets: it ends, and says so
    assert float(beyond.gradient.max()) > 1e-12


def test_exact_classifiers_map_over_x(small):
    x = jnp.stack([jnp.zeros(120), jnp.linspace(-2, 2, 120)])
    several = jax.jit(jax.vmap(lambda x: small.truth.fit(x, TEMPERATURES, tolerance=1e-8).y))(x)
    for one, y in zip(x, several, strict=True):
        np.testing.assert_allclose(y, small.truth.fit(one, TEMPERATURES, tolerance=1e-8).y, atol=1e-5)


def test_images_alike_in_every_class_give_a_zero_classifier():
    """Where the gradient at zero vanishes there is nothing to divide by, and nothing to do."""
    labels = jnp.arange(120, dtype=jnp.int32) % 10
    found = softmax.fit(jnp.ones((120, 64)), labels, jnp.ones(120), TEMPERATURES, 1e-3, 10)
    np.testing.assert_allclose(found.y, 0, atol=1e-12)
    assert np.all(np.isfinite(found.gradient))


def test_it_can_be_solved_and_finds_wrong_labels(digits):
    instance = cb.gallery.cleaning(0, digits)
    solver = cb.StocBiO(inner=0.1, outer=100.0, neumann=1e-2, terms=10)
    solution = cb.solve(instance.problem, instance.train, basis=cb.Chebyshev(3), solver=solver, steps=20, batch=128)
    assert solution.x.shape == (1000,)
    assert np.all(np.isfinite(solution.x))
    assert solution.policy(jnp.array([0.5, 5.0])).shape == (2, 64, 10)
    weight, wrong = np.asarray(solution.x), instance.truth.corrupted
    assert weight[wrong].mean() < weight[~wrong].mean()
    one, other = weight[wrong][:, None], weight[~wrong]
    ordered = float(np.mean((one < other) + (one == other) / 2))
    found = instance.truth.found(solution.x)
    assert found == pytest.approx(ordered, abs=1e-4)
    words = instance.truth.words(solution.x)
    assert f"{wrong.sum()} of 1000 labels are wrong" in words


@pytest.mark.thorough
def test_it_is_drawn(digits):
    instance = cb.gallery.cleaning(0, digits, train=60, validation=30)
    solver = cb.StocBiO(inner=0.1, outer=100.0, neumann=1e-2, terms=3)
    solution = cb.solve(instance.problem, instance.train, basis=cb.Chebyshev(3), solver=solver, steps=2, batch=16)
    scores, weights, shown = cb.gallery.draw_cleaning(instance, solution).axes
    assert [line.get_label() for line in scores.lines] == [
        "wrong labels left out",
        "weights found",
        "all weights equal",
    ]
    assert sum(patch.get_height() for patch in weights.patches) == 60
    assert len(shown.images) == 12


def test_the_objective_is_the_loss_of_exact_classifiers(small):
    x, data = np.linspace(-2, 2, 120), small.train.upper.eta
    y = np.asarray(small.truth.y(x, TEMPERATURES))
    rows = jax.jit(jax.vmap(small.problem.upper, (None, None, None, 0)))
    expected = np.mean([rows(x, *each, data) for each in zip(y, TEMPERATURES, strict=True)])
    assert small.truth.objective(x, data, (TEMPERATURES, np.ones(4))) == pytest.approx(expected, rel=1e-4)


def test_the_best_policy_in_a_span(small):
    """With one function for each of a few temperatures it is the exact classifiers; with fewer, stationary."""
    one = small
    x, xi, shares = np.random.default_rng(0).normal(size=120), np.array([0.5, 2.0, 6.0]), np.array([0.2, 0.3, 0.5])
    start, ridge = np.zeros((3, *one.problem.y0.shape)), np.asarray(one.problem.lower.regulariser)
    known = (one.truth.images, one.truth.labels, scipy.special.expit(x), ridge)
    found = np.asarray(best_coefficients(*known, np.eye(3), xi, shares, start))
    exact = np.asarray(one.truth.fit(x, xi).y)
    error = np.linalg.norm(found - exact, axis=(1, 2)) / np.linalg.norm(exact, axis=(1, 2))
    assert np.all(error < 2e-3)
    phi = np.array([[1.0, -1.0], [1.0, 0.2], [1.0, 1.5]])
    best = best_coefficients(*known, phi, xi, shares, start[:2])

    def value(W):
        y = jnp.einsum("mk,kdc->mdc", phi, W)
        logits = jnp.einsum("nd,mdc->mnc", one.truth.images, y) / xi[:, None, None]
        chosen = jnp.take_along_axis(logits, one.truth.labels[None, :, None], axis=2)[..., 0]
        entropy = jax.nn.logsumexp(logits, axis=-1) - chosen
        return shares @ (jnp.mean(entropy * jax.nn.sigmoid(x), axis=1) + ridge * jnp.sum(y**2, axis=(1, 2)))

    slope = jax.jit(jax.grad(value))
    assert np.linalg.norm(slope(best)) < 1e-3 * np.linalg.norm(slope(start[:2]))


def test_fresh_data_have_both_levels():
    """Test images are of the upper level; what certify takes has the lower one's too."""
    instance = cb.gallery.cleaning(0, train=30, validation=10)
    assert isinstance(instance.fresh, cb.Levels)
    assert "index" in instance.fresh.lower.eta
    assert "index" not in instance.fresh.upper.eta
    federated = cb.gallery.federated(0)
    assert federated.fresh is federated.test
