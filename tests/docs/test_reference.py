"""The reference: every public name has an example that runs, and every argument is described."""

import doctest
import enum
import importlib.util
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import cobilevel as cb

DOCS = Path(__file__).parents[2] / "docs"
_spec = importlib.util.spec_from_file_location("public_names", DOCS / "_ext" / "public_names.py")
public = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(public)
NAMES = public.public_names()

# Names whose example is a page of the gallery, which is run too.
SHOWN_ON = dict.fromkeys(("network", "grid", "draw_network", "draw_roads", "write_table"), "gallery/network.md")
SHOWN_ON["draw_cleaning"] = "gallery/cleaning.md"
# Names that need data or a package from elsewhere: `tests/gallery` tries them where these are there.
NEED_MORE = {"cb.gallery.images.mnist", "cb.gallery.tntp.read_project", "cb.gallery.tntp.sioux_falls"}


def examples(name):
    """The doctest of a name, with what the first lines of the reference import."""
    names = {"cb": cb, "jax": jax, "jnp": jnp, "np": np}
    return doctest.DocTestParser().get_doctest(public.docstring(NAMES[name]), names, name, None, None)


def test_every_name_has_its_topic():
    listed = [name for names in public.by_topic().values() for name in names]
    assert sorted(listed) == sorted(NAMES)
    assert set(cb.__all__) - {"direct", "gallery"} <= {name.removeprefix("cb.") for name in listed}


def test_every_name_has_an_example():
    lacking = []
    for name in set(NAMES) - NEED_MORE:
        page = SHOWN_ON.get(name.removeprefix("cb.gallery."))
        code = "".join(re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)) if page else ""
        if not examples(name).examples and f"{name}(" not in code:
            lacking.append(name)
    assert not lacking


def test_every_argument_is_described():
    lacking = {name: public.undescribed(value) for name, value in NAMES.items() if not _is_record(value)}
    pages = {f"cb.gallery.{name}" for name in SHOWN_ON}
    assert not {name: words for name, words in lacking.items() if words and name not in pages}


def _is_record(value):
    """Enumerations, and what the library makes and users only read."""
    return isinstance(value, enum.EnumMeta) or value in (
        cb.Solution,
        cb.direct.DirectSolution,
        cb.Certificate,
        cb.Diagnosis,
    )


def _compiles(name):
    """Whether an example compiles a program that no other one uses: a loop of its own, or a problem of its own."""
    loops = public.home(NAMES[name]).startswith("cobilevel.solvers") and name not in ("cb.Newton", "cb.SOBA")
    return loops or name.startswith("cb.gallery.draw_") or name == "cb.sweep.solve_all"


def _shown():
    for name in NAMES:
        if examples(name).examples:
            yield pytest.param(name, marks=[pytest.mark.thorough] if _compiles(name) else [])


@pytest.mark.parametrize("name", list(_shown()))
def test_an_example_runs(name, tmp_path, monkeypatch, promotion):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    said = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    kept = jax.config.jax_compilation_cache_dir
    try:
        outcome = runner.run(examples(name), out=said.append)
    finally:
        jax.config.update("jax_compilation_cache_dir", kept)
        plt.close("all")
    assert not outcome.failed, "".join(said)
