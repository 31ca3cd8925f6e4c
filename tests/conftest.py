"""Tests run in double precision; warnings are errors (see pyproject.toml)."""

import jax
import pytest

import cobilevel as cb

jax.config.update("jax_enable_x64", True)


@pytest.fixture(scope="session")
def quadratic():
    """d_x = 5, d_y = 3, scalar context, 4000 joint samples, noise in both levels."""
    return cb.gallery.quadratic(0)


@pytest.fixture(scope="session")
def traffic():
    return cb.gallery.two_edge_traffic(0)
