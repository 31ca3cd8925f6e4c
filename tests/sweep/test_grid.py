"""A grid of cases and bases: the answers of one solve at a time, from few programs."""

import jax
import jax.monitoring
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.sweep import solve_grid

# of one size, so that alone too they share programs; and one that has blocks
BASES = (cb.Chebyshev(7), cb.Fourier(7), cb.Orthonormal(cb.Monomial(7)), cb.Partition(7), cb.Partition(70))


@pytest.fixture(scope="module")
def cases():
    """Two networks of a few samples: of 70 cells some hold none, and not as many on both."""
    table = [cb.gallery.two_edge_traffic(seed, train=200, test=10) for seed in (1, 2)]
    return [(one.problem, one.train) for one in table]


@pytest.fixture(scope="module")
def one_by_one(cases):
    return [[cb.solve(*case, basis=basis, solver=cb.Newton()) for case in cases] for basis in BASES]


def test_a_grid_is_its_solves_one_by_one(cases, one_by_one):
    """Also where contexts leave some functions unseen."""
    xi = np.linspace(0, 1, 40)
    for expected, row in zip(one_by_one, solve_grid(cases, BASES), strict=True):
        for alone, found in zip(expected, row, strict=True):
            np.testing.assert_allclose(found.x, alone.x, rtol=0, atol=1e-8)
            np.testing.assert_allclose(found.policy(xi), alone.policy(xi), rtol=0, atol=1e-8)
            np.testing.assert_allclose(found.standard_error, alone.standard_error, rtol=1e-5)
            assert (found.result, found.W.shape) == (alone.result, alone.W.shape)
            assert found.stats["rank"] == alone.stats["rank"]
            assert found.choices.keys() == alone.choices.keys()


def test_bases_of_several_sizes_share_a_program(cases):
    """After the first, nothing is compiled for another basis."""
    list(solve_grid(cases, [cb.Chebyshev(2)], steps=2))
    count = []
    listen = lambda name, seconds, **_: count.append(name) if name.endswith("backend_compile_duration") else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    list(solve_grid(cases, [cb.Legendre(4), cb.BSpline(6), cb.Partition(9)], steps=2))
    assert not count


def test_a_solver_on_batches_takes_the_problem_as_it_is(cases):
    solver = cb.SOBA(batch=16)
    ((found, _),) = solve_grid(cases, [cb.Chebyshev(3)], solver, steps=20, key=4)
    alone = cb.solve(*cases[0], basis=cb.Chebyshev(3), solver=solver, steps=20, key=4)
    np.testing.assert_allclose(found.x, alone.x, rtol=1e-12)
    assert found.state is None


def test_what_is_no_basis_is_refused_at_once(cases):
    with pytest.raises(TypeError, match="basis must be a basis"):
        solve_grid(cases, ["Chebyshev"])
