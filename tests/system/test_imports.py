"""Names are imported when they are asked for, and are what a type checker sees; programs can be kept on disk."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import jax
import pytest

import cobilevel as cb
from cobilevel.ground.programs import keep_programs


def declared():
    """What a type checker sees: the imports of the package."""
    for node in ast.walk(ast.parse(Path(cb.__file__).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level and node.module:
            for alias in node.names:
                yield node.module, alias.name, alias.asname


def test_names_are_those_declared():
    names = list(declared())
    assert len(names) > 60
    for room, name, public in names:
        if public != "Polynomial":  # deprecated: test_public_names
            assert getattr(cb, public) is getattr(import_module(f"cobilevel.{room}"), name)
    assert {public for *_, public in names} - {"Polynomial"} == set(cb.__all__) - {"direct", "gallery"}
    assert set(cb.__all__) <= set(dir(cb))
    with pytest.raises(AttributeError, match="no attribute 'Newtone'"):
        _ = cb.Newtone


def fresh(code, **more):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **more}
    )
    return done.stdout.strip()


def test_nothing_is_imported_that_is_not_used():
    heavy = ("jax", "scipy", "matplotlib", "optax", "sklearn")
    first = f"import sys, cobilevel as cb; print([m for m in {heavy} if m in sys.modules])"
    used = "cb.solve, cb.certify; print([m for m in ('matplotlib', 'scipy.stats', 'sklearn') if m in sys.modules])"
    assert fresh(f"{first}; {used}").split("\n") == ["[]", "[]"]


def test_programs_are_kept(tmp_path):
    """The second process compiles nothing."""
    code = """
import jax, jax.monitoring, numpy as np, cobilevel as cb
hits, misses = [], []
names = {"/jax/compilation_cache/cache_hits": hits, "/jax/compilation_cache/cache_misses": misses}
jax.monitoring.register_event_listener(lambda name, **_: names.get(name, []).append(name))
cb.keep_programs()
problem = cb.Problem(lambda x, y, xi, eta: (y - xi) ** 2 + x**2, lambda x, y, xi, eta: (y - x * xi - eta) ** 2,
                     1.0, 0.0, cb.Interval(-1.0, 1.0))
rng = np.random.default_rng(0)
cb.solve(problem, cb.Samples(rng.uniform(-1, 1, 50), rng.normal(size=50)), cb.Chebyshev(2))
print(len(hits), len(misses))
"""
    first, second = (fresh(code, XDG_CACHE_HOME=str(tmp_path)).split() for _ in range(2))
    assert int(first[1]) >= 2
    assert second[1] == "0"
    assert (tmp_path / "cobilevel" / "programs").stat().st_mode & 0o077 == 0


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="modes of files are those of Unix")
def test_a_folder_that_others_write_to_is_refused(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 700"):
        keep_programs(open_to_all)
    assert jax.config.jax_compilation_cache_dir == before
