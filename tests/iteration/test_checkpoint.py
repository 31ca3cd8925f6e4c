"""A solve that is stopped at any moment goes on from its checkpoint as if nothing had happened."""

import errno
import os
import signal
import warnings
from itertools import pairwise

import jax
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.ground import archive
from cobilevel.iteration import checkpoint as checkpoints, course as courses, loop
from problems import NOISE, XI, Line, joint, scalar

BASIS = cb.Chebyshev(3)
SOLVERS = {"Newton": {}, "SOBA": {"solver": cb.SOBA(inner=0.1, outer=0.02, linear=0.1), "steps": 500}}


def solve(problem=None, samples=None, basis=BASIS, **options):
    problem = scalar(x0=1.0) if problem is None else problem
    return cb.solve(problem, joint() if samples is None else samples, basis=basis, **options)


@pytest.fixture
def every(monkeypatch):
    """Every look at a run is written down."""
    monkeypatch.setattr(checkpoints, "_WRITE_EVERY", 0.0)
    monkeypatch.setattr(checkpoints, "_WRITE_RARELY", 0.0)


def assert_same(one, other):
    for before, after in zip(jax.tree.leaves((one.x, one.W)), jax.tree.leaves((other.x, other.W)), strict=True):
        np.testing.assert_array_equal(before, after)
    assert one.history.keys() == other.history.keys()
    for name, curve in one.history.items():
        np.testing.assert_array_equal(other.history[name], curve)
    assert (one.result, one.stats["oracles"]) == (other.result, other.stats["oracles"])


@pytest.mark.parametrize("name", SOLVERS)
def test_goes_on_from_every_checkpoint_bit_for_bit(name, tmp_path, every, monkeypatch):
    """Each file that was ever written is what a killed process may leave behind."""
    left, write = [], archive.write

    def remembered(path, document, arrays):
        write(path, document, arrays)
        left.append(path.read_bytes())
        return path

    monkeypatch.setattr(archive, "write", remembered)
    whole = solve(**SOLVERS[name])
    watched = solve(**SOLVERS[name], checkpoint=tmp_path / "whole")
    assert_same(whole, watched)
    monkeypatch.setattr(archive, "write", write)
    assert len(left) >= 3
    for number in {0, 1, len(left) // 2, len(left) - 2, len(left) - 1}:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "checkpoint.npz").write_bytes(left[number])
        assert_same(whole, solve(**SOLVERS[name], checkpoint=folder))


def test_a_chosen_basis_is_gone_on_with(tmp_path, every, monkeypatch):
    """Several runs, one after the other: those that ended are not run again."""
    whole = solve(basis=None, checkpoint=tmp_path)
    monkeypatch.setattr(courses.Course, "add", lambda *_: pytest.fail("a step was taken again"))
    assert_same(whole, solve(basis=None, checkpoint=tmp_path))


def test_more_steps_go_on(tmp_path):
    options = {"solver": cb.SOBA(inner=0.1, outer=0.02, linear=0.1, average=0.0)}
    first = solve(**options, steps=300, checkpoint=tmp_path)
    more = solve(**options, steps=500, checkpoint=tmp_path)
    assert first.stats["steps"] == 300
    assert_same(solve(**options, steps=500), more)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"problem": scalar(lower=Line(weight=2.0), x0=1.0)}, "lower"),
        ({"problem": scalar(x0=2.0)}, "x0, y0"),
        ({"samples": cb.Samples(XI, 1 + NOISE)}, "samples"),
        ({"basis": cb.Chebyshev(4)}, "basis"),
        ({"solver": cb.SOBA(outer=0.1)}, "solver"),
        ({"key": 7}, "key"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_another_run_is_refused(tmp_path, change, differs):
    solve(steps=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=f"holds another run, which differs in:.*{differs}"):
        solve(steps=1, checkpoint=tmp_path, **change)


def interrupt_at(monkeypatch, step, kind):
    add = courses.Course.add

    def interrupted(self, state, records, chunk):
        add(self, state, records, chunk)
        if self.step >= step:
            signal.raise_signal(kind)

    monkeypatch.setattr(courses.Course, "add", interrupted)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_run_that_goes_on_later(kind, tmp_path, monkeypatch):
    whole = solve(**SOLVERS["SOBA"])
    with monkeypatch.context() as patch:
        interrupt_at(patch, 100, kind)
        with pytest.raises(cb.Interrupted, match="The same call") as stop:
            solve(**SOLVERS["SOBA"], checkpoint=tmp_path)
    assert stop.value.signal == kind
    found = stop.value.solution
    assert found.result is cb.Result.INTERRUPTED
    assert not found.converged
    assert 100 <= found.stats["steps"] < 500
    assert_same(whole, solve(**SOLVERS["SOBA"], checkpoint=tmp_path))
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_without_a_checkpoint_hands_over_what_there_is(monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_at(patch, 100, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt, match=r"resume=error\.solution") as stop:
            solve(**SOLVERS["SOBA"])
    assert_same(solve(**SOLVERS["SOBA"]), solve(**SOLVERS["SOBA"], resume=stop.value.solution))


def test_a_full_disk_leaves_the_run_and_the_last_checkpoint_alone(tmp_path, every, monkeypatch):
    whole = solve(**SOLVERS["SOBA"])
    write, written = archive.write, []

    def full(path, document, arrays):
        if len(written) >= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(write(path, document, arrays).read_bytes())
        return path

    monkeypatch.setattr(archive, "write", full)
    with pytest.warns(UserWarning, match=r"No space left.*The previous one is intact; the run continues"):
        found = solve(**SOLVERS["SOBA"], checkpoint=tmp_path)
    assert_same(whole, found)
    assert (tmp_path / "checkpoint.npz").read_bytes() == written[-1]
    with pytest.raises(OSError, match=r"No space left.*Free some space, or give another folder"):
        solve(**SOLVERS["SOBA"], checkpoint=tmp_path)
    assert (tmp_path / "checkpoint.npz").read_bytes() == written[-1]


def test_a_folder_that_cannot_be_written_to_is_refused_before_any_work(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"cannot be written to.*Give another folder"):
        solve(checkpoint=tmp_path / "file")
    if os.geteuid():  # root may write anywhere
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(OSError, match=r"cannot be written to.*Give another folder"):
            solve(checkpoint=tmp_path / "closed")


def test_one_process_at_a_time(tmp_path):
    with (
        checkpoints.Checkpoint(tmp_path, {}),
        pytest.raises(ValueError, match="another process is writing"),
        checkpoints.Checkpoint(tmp_path, {}),
    ):
        pass


def test_checkpoints_and_resume_exclude_each_other(tmp_path):
    with pytest.raises(TypeError, match="pass only one"):
        solve(checkpoint=tmp_path, resume=solve(steps=1))


def test_a_run_that_diverges_goes_back_and_says_so(tmp_path, every):
    """Steps ten times too long: without retreats the run is lost, with them it ends where it should."""
    wild = {"solver": cb.SOBA(inner=8.0, outer=0.1, linear=0.1), "steps": 600, "problem": scalar(x0=1.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lost, found = solve(**wild), solve(**wild, retreats=8, checkpoint=tmp_path)
    assert lost.result is cb.Result.DIVERGED
    assert found.result is not cb.Result.DIVERGED
    assert found.stats["retreats"] >= 1
    assert "diverged at step" in found.choices["retreats"]
    np.testing.assert_allclose(found.x, solve().x, rtol=0.2)
    assert found.stats["oracles"]["lower_gradient"]["calls"] > 600  # what was spent in vain counts too
    assert list(found.history["step"]) == list(range(1, 601))
    with pytest.raises(TypeError, match="leave retreats out"):
        solve(retreats=1)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda document, arrays: document.pop("runs"),
        lambda document, arrays: document.update(run=3),
        lambda document, arrays: document.update(runs=[{}]),
        lambda document, arrays: document["runs"][0].pop("seconds"),
        lambda document, arrays: document["runs"][0].update(retreats=[1]),
        lambda document, arrays: arrays.pop("0/state/0"),
        lambda document, arrays: arrays.update({"0/state/0": np.zeros(7)}),
    ],
)
def test_a_crafted_checkpoint_is_refused_in_words(spoil, tmp_path):
    """Files that are whole, and sealed, but say something else."""
    solve(steps=1, checkpoint=tmp_path)
    document, arrays = archive.read(tmp_path / "checkpoint.npz")
    spoil(document, arrays)
    archive.write(tmp_path / "checkpoint.npz", document, arrays)
    with pytest.raises(ValueError, match=r"not a checkpoint that|not a valid|another basis"):
        solve(steps=1, checkpoint=tmp_path)


def test_a_folder_of_the_users_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    cb.solve(scalar(x0=1.0), joint(), basis=cb.Chebyshev(3), checkpoint="~/run", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_states_to_go_back_to_do_not_depend_on_where_calls_end():
    """From every step the next one is the same, and no more than a quarter of the steps taken away, or a chunk."""
    solver = cb.SOBA()
    following = lambda step: step + (span := loop._span(solver, step)) - step % span
    places = [0]
    while places[-1] < 100 * solver.chunk:
        places.append(following(places[-1]))
    for before, after in pairwise(places):
        assert {following(step) for step in range(before, after)} == {after}
        assert after - before <= max(solver.chunk, before / 4)
    assert after - before == loop.CHUNKS * solver.chunk
