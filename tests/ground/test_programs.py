"""How programs are compiled, and which work needs none."""

import gc
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from cobilevel.ground import programs


def _options(monkeypatch):
    """The options that functions are compiled with from now on."""
    seen, scalar = [], programs._Said(programs._apart(np.zeros(()))[1])
    compiled = lambda function, options: seen.append(options) or (lambda held: (held, scalar))
    monkeypatch.setattr(programs, "_jitted", compiled)
    return seen


def test_small_programs_are_compiled_quickly_and_large_ones_thoroughly(monkeypatch):
    monkeypatch.setattr(programs, "_NUMBERS_AT_MOST", 10)
    compiled, stepped = programs.program(np.sum), programs.program_of_steps(np.sum)
    seen = _options(monkeypatch)
    compiled(np.zeros(10))
    compiled(np.zeros(11))
    stepped(np.zeros(11))
    jax.eval_shape(lambda a: jnp.asarray(compiled(a)), jax.ShapeDtypeStruct((3,), float))
    assert [bool(options) for options in seen] == [True, False, False]


def test_loops_of_steps_are_compiled_with_the_cheapest_optimisations(monkeypatch):
    monkeypatch.setitem(programs._CHEAPEST, "xla_backend_optimization_level", 1)
    seen = _options(monkeypatch)
    for compiled in (programs.program(np.sum), programs.program_of_steps(np.sum)):
        compiled(np.zeros(3))
    assert [options["xla_backend_optimization_level"] for options in seen] == [0, 1]


def test_a_compiler_without_the_options_is_used_without_them(monkeypatch):
    monkeypatch.setattr(programs, "_QUICKLY", {"xla_no_such_option": 1})
    double = programs.program(lambda a: 2 * a)
    for _ in range(2):
        assert float(double(jnp.ones(()))) == 2


def test_arithmetic_is_that_of_what_it_is_given():
    assert programs.arithmetic(np.ones(2), jnp.ones(2)) is np
    assert jax.eval_shape(lambda a: jnp.asarray(programs.arithmetic(a) is jnp), 1.0).shape == ()
    kinds = []
    jax.jit(lambda a: (kinds.append(programs.arithmetic(a, np.ones(2))), a)[1])(1.0)
    assert kinds == [jnp]
    moved = programs.put({"a": np.arange(3.0), "b": jnp.ones(2), "c": "word"})
    assert isinstance(moved["a"], jax.Array)
    np.testing.assert_array_equal(moved["a"], np.arange(3.0))
    assert moved["c"] == "word"


def test_programs_are_shared_by_kind_and_the_oldest_are_dropped(monkeypatch):
    monkeypatch.setattr(programs, "_KINDS_KEPT", 2)
    traced = []

    def powered(array, power, word):
        traced.append(power)
        return {"value": array**power, "word": word, "power": power}

    compiled = programs.program(powered)
    for power in (1, 2, 1, 2.0, 1):  # 2.0 is another kind than 2
        out = compiled(jnp.full(3, 3.0), power, "a word")
        np.testing.assert_array_equal(out["value"], np.full(3, 3.0**power))
        assert (out["word"], out["power"]) == ("a word", power)
    assert traced == [1, 2, 2.0]
    compiled(jnp.ones(3), 2, "a word")  # was dropped
    assert traced == [1, 2, 2.0, 2]


def test_what_a_dropped_program_held_is_freed(monkeypatch):
    monkeypatch.setattr(programs, "_KINDS_KEPT", 1)

    class Held:
        pass

    compiled, alive = programs.program(lambda array, held: 2 * array), []
    for _ in range(3):
        held = Held()
        alive.append(weakref.ref(held))
        compiled(jnp.ones(2), held)
        del held
    gc.collect()
    assert [ref() is None for ref in alive] == [True, True, False]


def test_the_limit_on_threads_is_set_by_the_first_and_lifted_by_the_last(monkeypatch):
    """Calls in several threads overlap in any order; after all of them the pool has its threads again."""
    pool = SimpleNamespace(threads=4)

    class Limit:
        def __init__(self, limits, user_api):
            self.before, pool.threads = pool.threads, limits

        def restore_original_limits(self):
            pool.threads = self.before

        __enter__, __exit__ = (lambda self: None), (lambda self, *error: self.restore_original_limits())

    monkeypatch.setattr(programs, "_pools", lambda: SimpleNamespace(limit=Limit))
    first, second = programs.one_thread(), programs.one_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert pool.threads == 1  # the second is still inside
    second.__exit__(None, None, None)
    assert pool.threads == 4
    with ThreadPoolExecutor(8) as threads:
        meet = Barrier(8)

        def inside(turn):
            meet.wait()
            with programs.one_thread():
                time.sleep(1e-3 * turn)
                return pool.threads

        assert set(threads.map(inside, range(8))) == {1}
    assert pool.threads == 4
