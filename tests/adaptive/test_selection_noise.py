"""Tests of what noise explains, where the components of ``y`` move together."""

import numpy as np
import pytest

from cobilevel.adaptive.selection import Projection


@pytest.mark.parametrize("together", [True, False])
def test_components_that_move_together_count_as_one(together):
    """Noise stands out as often as the level says, whether 20 components are one, or each on its own."""
    rng, n, dy = np.random.default_rng(0), 400, 20
    psi = np.linalg.qr(rng.normal(size=(n, 200)))[0] * np.sqrt(n)
    noise = rng.normal(size=(n, 1)) * np.ones(dy) if together else rng.normal(size=(n, dy))
    found = Projection(psi, np.full(n, 1 / n)).of(noise)
    share = np.mean(found.stands_out(np.arange(200)[:, None], 0.05))
    assert 0.01 < share < 0.1
