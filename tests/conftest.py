"""Tests run in double precision, with strict promotion and with every annotation of the package checked.

Warnings are errors (see pyproject.toml). Most of the time goes into compiling programs that run for milliseconds, so
machine code is optimised less than usual.
"""

import os

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=1"

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jaxtyping.install_import_hook("cobilevel", "beartype.beartype")

import cobilevel as cb


@pytest.fixture
def unchecked(monkeypatch):
    """Without the checks of annotations, as a user has it: what the package itself says of bad arguments."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def promotion():
    """The promotion of types that JAX has by default: Optax relies on it."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="session")
def quadratic():
    """d_x = 5, d_y = 3, scalar context, 4000 joint samples, noise in both levels."""
    return cb.gallery.quadratic(0)


@pytest.fixture(scope="session")
def traffic():
    return cb.gallery.two_edge_traffic(0)
