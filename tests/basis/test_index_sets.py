"""Which products of one-dimensional functions are taken in several dimensions."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb


def test_index_sets():
    assert cb.Tensor().table(4, 3).shape == (64, 3)
    assert cb.TotalDegree().table(4, 3).shape == (20, 3)
    cross = {tuple(k) for k in cb.HyperbolicCross().table(4, 2)}
    assert cross == {(0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (3, 0), (0, 3), (1, 1)}
    for index in (cb.Tensor(), cb.TotalDegree(), cb.HyperbolicCross()):
        assert index.table(5, 1).ravel().tolist() == [0, 1, 2, 3, 4]
        small, large = ({tuple(k) for k in index.table(n, 3)} for n in (3, 5))
        assert small < large
    order = cb.TotalDegree().table(5, 2).sum(axis=1)
    assert np.all(np.diff(order) >= 0)


def test_functions_listed():
    xi = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    listed = cb.Chebyshev(4, index=cb.Listed([(0, 0), (1, 0), (3, 1)]))
    fitted = listed.fit(cb.Box([-1, -1], [1, 1]), xi)
    wanted = np.stack([np.ones(50), xi[:, 0], np.cos(3 * np.arccos(xi[:, 0])) * xi[:, 1]], axis=1)
    assert np.asarray(fitted(xi)) == pytest.approx(wanted)
    with pytest.raises(ValueError, match="equal length"):
        cb.Listed([(0, 0), (1,)])
    with pytest.raises(ValueError, match="do not fit"):
        cb.Chebyshev(2, index=cb.Listed([(0, 3)])).fit(cb.Box([-1, -1], [1, 1]), xi)


@pytest.mark.parametrize("dimension", [2, 3])
def test_total_degree_beats_tensor_on_an_isotropic_function(dimension):
    """The fewest functions with which each index set fits ``exp(xi_1 + ... + xi_d)`` to 1e-6, as a policy."""
    rng = np.random.default_rng(0)
    domain = cb.Box(-np.ones(dimension), np.ones(dimension))
    xi = jnp.asarray(rng.uniform(-1, 1, (3500, dimension)))
    truth = np.exp(np.asarray(xi).sum(axis=1))
    seen, fresh = slice(0, 3000), slice(3000, None)

    def fewest(index):
        for n in range(7, 13):
            basis = cb.Chebyshev(n, index=index).fit(domain, xi)
            phi = np.asarray(basis(xi))
            W = np.linalg.lstsq(phi[seen], truth[seen], rcond=None)[0]
            if np.max(np.abs(phi[fresh] @ W - truth[fresh])) < 1e-6 * np.max(truth[fresh]):
                return basis.size
        return np.inf

    assert fewest(cb.TotalDegree()) < fewest(cb.Tensor()) < np.inf
