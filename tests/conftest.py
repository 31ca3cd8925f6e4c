"""Tests run in double precision, with strict promotion and with every annotation of the package checked.

Warnings are errors (see pyproject.toml). Most of the time goes into compiling programs that run for milliseconds, so
machine code is made the quick way, and hardly optimised.
"""

import mmap
import os
from pathlib import Path

import jaxlib

# 0: as few passes over the machine code as there are; without the emitters of fused loops, whose code takes longest to
# make; in one piece, since both cores have a worker of their own
FLAGS = {
    "xla_backend_optimization_level": "0",
    "xla_cpu_use_fusion_emitters": "false",
    "xla_cpu_parallel_codegen_split_count": "1",
}


def _known(flag):
    """Whether the XLA at hand knows a flag: one that it does not know would end the process."""
    for path in Path(jaxlib.__file__).parent.glob("*.so"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(flag.encode()) >= 0:
                return True
    return False


if "XLA_FLAGS" not in os.environ:
    os.environ["XLA_FLAGS"] = " ".join(f"--{flag}={value}" for flag, value in FLAGS.items() if _known(flag))

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
