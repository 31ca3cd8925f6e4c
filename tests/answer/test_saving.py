"""Files of solutions: recognised by their functions, refused where damaged or made up, written in one piece."""

import importlib.util
import os
import resource
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.answer import Objectives, identity
from cobilevel.answer.job import check_functions
from cobilevel.ground import archive
from cobilevel.iteration import Saved
from cobilevel.study import Study
from problems import LINE, NOISE, XI

_PATH = Path(__file__).parents[2] / "benchmarks" / "damage.py"
_SPEC = importlib.util.spec_from_file_location("damage", _PATH)
assert _SPEC is not None
damage = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(damage)


def upper(x, y, xi, eta):
    return (y - 2 * xi) ** 2 + (x - 2) ** 2


def lower(x, y, xi, eta):
    return (y - x * xi) ** 2


def stated(f=upper, g=lower, **more):
    """At the answer, x = 2 and y = 2 xi, both objectives and all their slopes are zero."""
    return cb.Problem(f, g, 1.0, 0.0, LINE, **more)


def found(problem, samples, x, W):
    """What a solver would have found: to save it takes no solving."""
    study = Study.of(problem, samples)
    reduced = cb.reduce(problem, cb.Chebyshev(3), samples)
    more = {"history": {"upper": np.arange(4.0)}, "stats": {"steps": 4}, "choices": {"solver": "none."}}
    lifted = reduced.lift(x, W, cb.Result.CONVERGED, state=Saved([np.arange(3.0)], "as it was"), **more)
    return replace(lifted, objectives=Objectives.of(study))


@pytest.fixture(scope="module")
def solved():
    return found(stated(), cb.Samples(XI, NOISE), jnp.asarray(2.0), jnp.array([1.0, 1.0, 0.0]))


@pytest.fixture(scope="module")
def saved(solved, tmp_path_factory):
    return solved.save(tmp_path_factory.mktemp("saved") / "run.npz")


OTHERS = {
    "upper": [
        lambda x, y, xi, eta: 3 * upper(x, y, xi, eta),
        lambda x, y, xi, eta: upper(x, y, xi, eta) + 1e-6 * y,
        lambda x, y, xi, eta: (y - 2 * xi) ** 2 + 5 * (x - 2) ** 2,
    ],
    "lower": [
        lambda x, y, xi, eta: (y - x * xi) ** 4 + lower(x, y, xi, eta),
        lambda x, y, xi, eta: (y - x * xi**2) ** 2,
    ],
}


@pytest.mark.parametrize(("name", "function"), [(name, one) for name, some in OTHERS.items() for one in some])
def test_a_file_is_not_loaded_for_other_functions(saved, name, function):
    with pytest.raises(ValueError, match=f"another problem: {name} is another function: its .* differ by up to"):
        cb.load(saved, stated(**{{"upper": "f", "lower": "g"}[name]: function}))


def test_a_tilde_is_the_users_own_folder(saved, tmp_path, monkeypatch):
    """As it is for a checkpoint; it was a folder named ``~`` where the program ran."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    written = cb.load(saved, stated()).save("~/run.npz")
    assert written == tmp_path / "home" / "run.npz"
    assert cb.load("~/run.npz", stated()).x == cb.load(written, stated()).x


def test_the_same_functions_written_otherwise_are_the_same(solved, saved):
    rewritten = lambda x, y, xi, eta: (y**2 - 4 * y * xi + 4 * xi**2) + (x * x - 4 * x + 4)
    np.testing.assert_array_equal(cb.load(saved, stated(rewritten)).x, solved.x)


def test_nothing_is_computed_where_nothing_was_changed(saved, monkeypatch, tmp_path):
    def forbidden(*_):
        raise AssertionError("the digests agree")

    monkeypatch.setattr(identity, "_values", forbidden)
    again = cb.load(saved, stated())
    again.save(tmp_path / "again.npz")  # what the file kept is kept
    before, after = (archive.read(path) for path in (saved, tmp_path / "again.npz"))
    assert before[0]["objectives"] == after[0]["objectives"]
    assert before[1].keys() == after[1].keys()


def test_eta_of_a_class_of_its_own_is_said_to_be_unchecked(solved, tmp_path):
    class Noise(NamedTuple):
        both: np.ndarray

    path = found(stated(), cb.Samples(XI, Noise(NOISE)), solved.x, solved.W).save(tmp_path / "own.npz")
    with pytest.warns(UserWarning, match="cannot check .* since eta is an instance of a user-defined class"):
        cb.load(path, stated())


def lifted(basis, domain=LINE, xi=XI):
    """A solution that took no solving."""
    problem = cb.Problem(lambda x, y, xi, eta: y**2, lambda x, y, xi, eta: (y - x) ** 2, 1.0, 0.0, domain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reduced = cb.reduce(problem, basis, cb.Samples(xi, NOISE))
    return problem, reduced.lift(reduced.x0, reduced.W0)


def powers(shift):
    return cb.Features(lambda xi: jnp.stack([(xi - shift) ** k for k in range(3)]), 3)


def test_features_must_have_the_values_they_had(tmp_path):
    problem, solution = lifted(cb.Orthonormal(powers(0.0)))
    path = solution.save(tmp_path / "own.npz")
    back = cb.load(path, problem, basis=cb.Orthonormal(powers(0.0)))
    np.testing.assert_array_equal(back.policy(0.3), solution.policy(0.3))
    with pytest.raises(ValueError, match="other Features"):
        cb.load(path, problem, basis=cb.Orthonormal(powers(0.1)))
    study = Study.of(problem, cb.Samples(XI, NOISE))
    check_functions(study, cb.Orthonormal(powers(0.0)), back)
    with pytest.raises(ValueError, match="resume: the functions of Features have other values"):
        check_functions(study, cb.Orthonormal(powers(0.1)), back)


TWO = np.int64(2)
NUMPY = {
    "index": lambda: (cb.Chebyshev(np.int32(3), index=cb.Interactions(np.int64(1))), LINE),
    "period": lambda: (cb.Fourier(np.int64(3), period=np.float32(1.5)), cb.Interval(np.float64(0), np.int64(1))),
    "degree": lambda: (cb.BSpline(np.int64(4), degree=TWO), cb.Interval(0, np.float32(1))),
    "tolerance": lambda: (cb.Orthonormal(cb.Partition(TWO), tolerance=np.float64(1e-6)), LINE),
    "features": lambda: (cb.Features(lambda xi: jnp.stack([xi, xi**2]), TWO), LINE),
    "parts": lambda: (cb.Union([cb.Partition(TWO), cb.Monomial(TWO)]), LINE),
    "values": lambda: (cb.Categorical(), cb.Finite([np.float32(k) for k in range(2)])),
}


@pytest.mark.parametrize("stated_with", NUMPY.values(), ids=NUMPY)
def test_numbers_of_numpy_are_saved(stated_with, tmp_path):
    basis, domain = stated_with()
    problem, solution = lifted(basis, domain, np.round(XI) if isinstance(domain, cb.Finite) else XI)
    path = solution.save(tmp_path / "numpy.npz")
    own = basis if isinstance(basis, cb.Features) else None
    np.testing.assert_array_equal(cb.load(path, problem, basis=own).policy(1.0), solution.policy(1.0))


def resealed(saved, tmp_path, change):
    """The file with a change that its seal covers."""
    document, arrays = archive.read(saved)
    change(document, arrays)
    return archive.write(tmp_path / "crafted.npz", document, arrays)


CRAFTED = {
    "NaN": (lambda d, a: a.update({"W/0": a["W/0"] * np.nan}), "says that it converged"),
    "basis": (lambda d, a: d["basis"].update(n=10**9), "1000000000 functions"),
    "functions": (lambda d, a: d["basis"].update(n=4), "4 functions, but coefficients for 3"),
    "more of them": (lambda d, a: a.update({"basis/constant": np.zeros(7)}), "3 functions, but coefficients for 7"),
    "entry": (lambda d, a: d.pop("stats"), "stats missing"),
    "result": (lambda d, a: d.update(result="GOOD"), "its result cannot be read"),
    "errors": (lambda d, a: d["uncertainty"].update(value="none"), "could not convert"),
    "format": (lambda d, a: d.update(format=99), "formats up to 3"),
    "recipe": (lambda d, a: d["basis"].update(name="system"), "not part of this library"),
    "digests": (lambda d, a: d["objectives"].update(digests=3), "its objectives cannot be read"),
}


@pytest.mark.parametrize(("change", "words"), CRAFTED.values(), ids=CRAFTED)
def test_what_contradicts_itself_is_refused(saved, tmp_path, change, words):
    with pytest.raises(ValueError, match=words):
        cb.load(resealed(saved, tmp_path, change), stated())


def test_damaged_and_crafted_files_are_refused_in_words(tmp_path):
    start = found(damage.problem(), damage.samples(), jnp.asarray(1.0), {"rate": jnp.array([0.5, 0.5, 0.0])})
    trial = damage.Trial(tmp_path, start)
    trial.run(80, seed=1)
    assert not trial.failures
    assert sum(trial.counts.values()) > 80


def test_a_flip_of_any_byte_is_seen(tmp_path):
    """Of a small archive: headers, names and numbers, and each byte of directory and seal."""
    path = archive.write(tmp_path / "a.npz", {"format": 1}, {"x": np.arange(3.0)})
    raw = path.read_bytes()
    for place in (*range(0, len(raw) - 400, 3), *range(len(raw) - 400, len(raw))):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 16]) + raw[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            archive.read(path, unsealed=(1,))
    path.write_bytes(raw)
    assert archive.read(path)[0] == {"format": 1}
    assert sorted(np.load(path)) == ["__document__", "x"]  # NumPy opens it too


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path):
    path = archive.write(tmp_path / "a.npz", {"run": 1}, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(
            OSError, match=r"could not be written: File too large\. The file that was there is unchanged"
        ):
            archive.write(path, {"run": 2}, {"x": np.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert archive.read(path)[0] == {"run": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["a.npz"]
    with pytest.raises(OSError, match="give a path in a folder that can be written to"):
        archive.write(path / "b.npz", {}, {})


def test_drafts_of_killed_writers_go_with_the_next_write(tmp_path):
    old, fresh = (tmp_path / f"a.npz.{k}.part" for k in ("0" * 16, "1" * 16))
    for draft in (old, fresh):
        draft.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    archive.write(tmp_path / "a.npz", {}, {})
    assert not old.exists()
    assert fresh.exists()
