"""Refused in a sentence: functions of another problem, files of others, empty constraints, paths that are none."""

import errno
import json
import os
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import cobilevel as cb
from cobilevel.cli import app
from cobilevel.ground import archive

XI = np.linspace(0, 1, 120)
DATA = cb.Samples(XI, np.sin(3 * XI))
upper = lambda x, y, xi, eta: (y - 1) ** 2 + x**2
lower = lambda x, y, xi, eta: (y - x * xi - eta) ** 2
PROBLEM = cb.Problem(upper, lower, 0.3, 0.0, cb.Interval(0, 1))
BASIS = cb.Chebyshev(3)


@pytest.fixture(scope="module")
def found():
    return cb.solve(PROBLEM, DATA, basis=BASIS)


def test_a_bootstrap_of_other_functions(found):
    with pytest.raises(ValueError, match="bootstrap: the solution belongs to another problem: upper has changed"):
        cb.bootstrap(replace(PROBLEM, upper=lambda x, y, xi, eta: (y - 3) ** 2 + x**2), found, DATA, replicates=2)


def test_a_checkpoint_of_another_version(tmp_path):
    first = cb.solve(PROBLEM, DATA, basis=BASIS, checkpoint=tmp_path)
    assert cb.solve(PROBLEM, DATA, basis=BASIS, checkpoint=tmp_path).x == first.x
    path = tmp_path / "checkpoint.npz"
    document, arrays = archive.read(path, "checkpoint")
    archive.write(path, document | {"written_by": "cobilevel 0.0.1 with jax 0.8.0"}, arrays)
    with pytest.raises(ValueError, match=r"was written by cobilevel 0\.0\.1 .* and this is cobilevel"):
        cb.solve(PROBLEM, DATA, basis=BASIS, checkpoint=tmp_path)


def test_text_in_a_history(found, tmp_path):
    path = found.save(tmp_path / "run.npz")
    document, arrays = archive.read(path)
    archive.write(path, document, arrays | {"history/upper": np.array(["low", "lower"])})
    with pytest.raises(ValueError, match="its history holds text"):
        cb.load(path, PROBLEM)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (cb.Bounds(lambda xi: None), "the lower bound returns None"),
        (cb.Bounds(hi=lambda xi: 1 / 0), "ZeroDivisionError"),
        (cb.Inequalities(lambda x, y, xi: jnp.zeros(0)), "returns an empty array"),
    ],
)
def test_constraints_that_say_nothing(limit, words):
    with pytest.raises(ValueError, match=rf"constraints\[0\].*{words}"):
        cb.solve(replace(PROBLEM, constraints=(limit,)), DATA, basis=BASIS)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_paths_that_are_none(found, path):
    for use in (found.save, lambda path: cb.load(path, PROBLEM)):
        with pytest.raises(ValueError, match="give a path"):
            use(path)


def test_a_full_disk_while_a_file_is_written(tmp_path):
    """A zip that could not be written cannot be closed either, which is an error of its own."""

    def full(_):
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            raise ValueError("Can't close the ZIP file while there is an open writing handle on it.")

    with pytest.raises(OSError, match=r"could not be written: No space left.*Free some space"):
        archive.write_file(tmp_path / "run.npz", full)


def test_a_folder_of_a_stranger(tmp_path):
    (tmp_path / "experiment.json").write_text(json.dumps({"mine": 1}))
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert "was not written by cobilevel reproduce" in done.output


def test_whole_numbers_of_128_bits():
    frame = pl.DataFrame({"t": XI, "d": np.arange(120) % 3}).with_columns(pl.col("d").cast(pl.Int128))
    np.testing.assert_array_equal(cb.Samples.from_frame(frame, context="t", eta="d").eta, np.arange(120) % 3)


def test_regret_is_a_figure_with_an_interval(found):
    regret = cb.certify(PROBLEM, found, DATA).regret
    assert (float(regret), regret.error, regret.interval) == (regret.total, regret.total.error, regret.total.interval)
