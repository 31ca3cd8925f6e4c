"""Two-edge traffic, 30 instances: the reduced optimum against the exact-lower-level optimum of the same sample."""

import equinox as eqx
import jax
import numpy as np
import pytest
import scipy.optimize

import cobilevel as cb

SEEDS = range(30)  # the limit holds for their mean and twice its standard error: fewer have less room below it


@eqx.filter_jit
def exact_loss(x, truth, samples):
    return jax.value_and_grad(truth.loss)(x, samples)


@eqx.filter_jit
def loss_alone(x, truth, samples):
    return truth.loss(x, samples)


@pytest.fixture(scope="module")
def instances():
    """Each instance with the test losses of the exact-lower-level optimum of its training sample, and of the truth."""
    found = []
    for seed in SEEDS:
        instance = cb.gallery.two_edge_traffic(seed, noise=0.05)
        value = lambda x, i=instance: tuple(np.asarray(v, dtype=float) for v in exact_loss(x, i.truth, i.train))
        start, options = np.asarray(instance.truth.x), {"gtol": 1e-9}  # kinks: from far away it may get stuck
        best = scipy.optimize.minimize(value, start, jac=True, bounds=[(0.05, 3.0)] * 2, options=options)
        losses = [float(loss_alone(x, instance.truth, instance.test)) for x in (best.x, instance.truth.x)]
        found.append((instance, *losses))
    return found


@pytest.mark.parametrize(
    ("basis", "limit"),
    [
        (cb.Chebyshev(5), 1.005),
        (cb.Chebyshev(10), 1.001),
        pytest.param(cb.Fourier(10), 1.001, marks=pytest.mark.thorough),
        pytest.param(cb.Partition(50), 1.001, marks=pytest.mark.thorough),
    ],
    ids=repr,
)
def test_within_a_thousandth_of_the_exact_optimum(instances, basis, limit):
    over_best, over_reference = [], []
    for instance, best, reference in instances:
        solution = cb.solve(instance.problem, instance.train, basis=basis)
        assert solution.converged, solution.result
        kink = solution.result is cb.Result.KINK  # flows that vanish at a context make some, and a gradient jumps there
        assert kink or solution.history["gradient"][-1] < 1e-6
        loss = float(loss_alone(solution.x, instance.truth, instance.test))
        over_best.append(loss / best)
        over_reference.append(loss / reference)
    mean, error = np.mean(over_best), np.std(over_best, ddof=1) / np.sqrt(len(over_best))
    assert mean + 2 * error <= limit
    assert abs(np.mean(over_reference) - 1) < 0.005


def test_observed_flows_are_nonnegative_and_centred_where_they_can_be():
    instance = cb.gallery.two_edge_traffic(7, noise=0.05, train=20_000)
    eta = np.asarray(instance.train.eta)
    assert eta.min() >= 0
    exact = np.asarray(instance.truth.y(instance.truth.x, instance.train.xi))
    clear = exact.min(axis=1) > 0.2  # so far from zero that hardly any noise was redrawn
    gap = (eta - exact)[clear]
    assert np.all(np.abs(gap.mean(axis=0)) < 4 * 0.05 / np.sqrt(clear.sum()))
    np.testing.assert_allclose(gap.std(), 0.05, rtol=0.03)


def test_noise_far_below_the_negative_flows_is_drawn_too():
    """Exact flows reach -0.01; waiting for noise of 0.0005 to lift them above zero would take forever."""
    eta = np.asarray(cb.gallery.two_edge_traffic(0, noise=5e-4).train.eta)
    assert np.all(np.isfinite(eta))
    assert eta.min() >= 0


def test_instances_are_reproducible_and_differ():
    one, same, other = (cb.gallery.two_edge_traffic(seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.train.eta, same.train.eta)
    assert not np.allclose(one.truth.x, other.truth.x)
    assert np.all((one.truth.x >= 0.2) & (one.truth.x <= 0.8))


@pytest.mark.thorough
def test_zero_noise():
    instance = cb.gallery.two_edge_traffic(0, noise=0.0, train=300, test=100)
    solution = cb.solve(instance.problem, instance.train, basis=cb.Chebyshev(20))
    judged = cb.evaluate(instance.problem, solution, instance.test, instance.truth)
    assert judged.x_error < 1e-3
