"""Tests run in double precision and with strict promotion.

Warnings are errors (see pyproject.toml). Annotations are checked at run time in one place, ``system/test_annotations``.
Most of the time goes into compiling programs that run for milliseconds, so
machine code is made the quick way, and hardly optimised.
"""

import gc
import mmap
import os
import signal
from pathlib import Path

import jax
import jaxlib
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

import cobilevel as cb
from cobilevel.ground import programs

# Without the emitters of fused loops, whose code takes longest to make, and without the passes over loops that take
# longest; in one piece, since each core has a worker of its own; with as few passes over it as there are, but for the
# tests that run for long.
FLAGS = {
    "xla_cpu_parallel_codegen_split_count": "1",
    "xla_disable_hlo_passes": "while-loop-invariant-code-motion,simplify-while-loops",
}
if jax.__version_info__ < (0, 11):  # later ones have it among a program's options alone
    FLAGS["xla_cpu_use_fusion_emitters"] = "false"
LEVEL, LEVEL_THOROUGH = "0", "2"


def _known(flag):
    """Whether the XLA at hand knows a flag: one that it does not know would end the process."""
    for path in Path(jaxlib.__file__).parent.glob("*.so"):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(flag.encode()) >= 0:
                return True
    return False


def pytest_configure(config):
    """How machine code is made, set before the first is; processes that tests start inherit it."""
    level = LEVEL_THOROUGH if config.option.markexpr.startswith("thorough") else LEVEL
    if level == LEVEL:  # of the loops of stochastic solvers, which have options of their own
        programs._CHEAPEST["xla_backend_optimization_level"] = int(level)
    if "XLA_FLAGS" not in os.environ:
        chosen = {"xla_backend_optimization_level": level} | FLAGS
        os.environ["XLA_FLAGS"] = " ".join(f"--{flag}={value}" for flag, value in chosen.items() if _known(flag))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell; tests send it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()  # what is imported stays, and need not be looked through again and again
    gc.set_threshold(50_000, 20, 20)


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
