"""Calls that cannot be made where they are made say so: under a transformation of JAX, or in a forked process."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.ground import checks
from cobilevel.ground.keys import as_key
from problems import joint, scalar

BASIS = cb.Chebyshev(3)
SOLUTION = object()  # looked at later than where it is called
CALLS = {
    "solve": lambda problem, samples: cb.solve(problem, samples, BASIS),
    "reduce": lambda problem, samples: cb.reduce(problem, BASIS, samples),
    "certify": lambda problem, samples: cb.certify(problem, SOLUTION, samples),
    "evaluate": lambda problem, samples: cb.evaluate(problem, SOLUTION, samples),
    "diagnose": lambda problem, samples: cb.diagnose(problem, BASIS, samples),
    "bootstrap": lambda problem, samples: cb.bootstrap(problem, SOLUTION, samples),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_inside_of_transformations_are_refused(name):
    call, said = CALLS[name], rf"^{name} was called under jax.jit.*Call it outside.*solution\.policy"
    constant = lambda a: call(scalar(), joint()) and a
    in_x0 = lambda a: call(scalar(x0=a), joint()) and a
    in_noise = lambda a: call(scalar(), cb.Samples(np.linspace(0, 1, 3), a)) and a
    in_closure = lambda a: call(scalar(upper=lambda x, y, xi, eta: a * y), joint()) and a
    for transformed in (
        jax.jit(constant),
        jax.jit(in_x0),
        jax.grad(in_x0),
        jax.grad(in_closure),
        jax.make_jaxpr(constant),
    ):
        with pytest.raises(TypeError, match=said):
            transformed(0.5)
    with pytest.raises(TypeError, match=said):
        jax.vmap(in_noise)(jnp.zeros((2, 3)))


FORKED = """
import multiprocessing, warnings
warnings.simplefilter("ignore")
import jax.numpy as jnp
from cobilevel.ground.checks import require_threads
def guarded(queue):
    try:
        require_threads("solve")
        queue.put("fine")
    except RuntimeError as error:
        queue.put(str(error))
context = multiprocessing.get_context("fork")
def forked():
    queue = context.Queue()
    process = context.Process(target=guarded, args=(queue,))
    process.start()
    print(queue.get(timeout=60).replace("\\n", " "))
    process.join()
forked()
jnp.zeros(3).block_until_ready()
forked()
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork here")
def test_a_process_forked_after_jax_started_is_refused_and_one_before_is_not():
    """Seen from two children of a process of its own: this one has started JAX already."""
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before == "fine"
    assert "fork does not copy" in after
    assert '"spawn"' in after


def test_programs_and_calls_ask_whether_the_process_was_forked(monkeypatch):
    monkeypatch.setattr(checks, "_FORKED_FROM", [1])
    for call in CALLS.values():
        with pytest.raises(RuntimeError, match="spawn"):
            call(scalar(), joint())
    fitted = BASIS.fit(cb.Interval(0.0, 1.0), np.linspace(0, 1, 9))
    assert fitted(np.linspace(0, 1, 9)).shape == (9, len(fitted.constant))  # on the host, where nothing waits


def test_keys():
    assert jax.random.key_data(as_key(jax.random.PRNGKey(3))).tolist() == jax.random.key_data(as_key(3)).tolist()
    assert as_key(np.array(3)) is as_key(3) is as_key(np.int64(3))
    as_key(2**63 - 1), as_key(-(2**63))
    for key, kind, words in (
        (2**63, ValueError, "64 bits"),
        (-(2**80), ValueError, "64 bits"),
        (jax.random.split(jax.random.key(0), 3), ValueError, r"one key.*\(3,\).*key\[0\]"),
        (np.zeros(3), TypeError, "whole number or a jax.random.key"),
        (np.zeros(3, np.uint32), TypeError, "whole number"),
        (True, TypeError, "whole number"),
        (None, TypeError, "whole number"),
        ("7", TypeError, "whole number"),
    ):
        with pytest.raises(kind, match=words):
            as_key(key)
