"""A table in partitions has the answer of the same rows in one array, whoever adds them up."""

import gc
import re
import weakref

import numpy as np
import pytest

import cobilevel as cb
from partitioned import BOUNDED, LINE, MIXED, cut, same, table


@pytest.mark.parametrize(
    ("problem", "basis", "roles"),
    [
        (LINE, None, {"context": "t", "eta": "d", "weights": "w"}),
        (BOUNDED, cb.Chebyshev(4), {"context": "t", "eta": "d"}),
        (MIXED, None, {"context": ["t", "day"], "eta": ["d"]}),
    ],
    ids=["weights", "bounds", "mixed"],
)
def test_the_answer_of_one_array(problem, basis, roles):
    frame = table()
    whole = cb.solve(problem, cb.Samples.from_frame(frame, **roles), basis)
    parts = cb.solve(problem, cb.Samples.from_frame(cut(frame), **roles), basis)
    same(whole, parts, frame, roles["context"])
    np.testing.assert_allclose(parts.uncertainty.error, whole.uncertainty.error, rtol=1e-6)
    assert "7 partitions" in parts.choices["samples"]


def test_a_sample_chooses_the_basis_and_all_rows_the_answer():
    frame, roles = table(4000), {"context": "t", "eta": "d", "weights": "w"}
    samples = cb.Samples.from_frame(cut(frame), **roles, sample=1000)
    parts = cb.solve(LINE, samples)
    assert "1000 of them" in parts.choices["samples"]
    assert "Chosen on the rows in this process" in parts.choices["basis"]
    whole = cb.solve(LINE, cb.Samples.from_frame(frame, **roles), basis=parts.basis.basis)
    same(whole, parts, frame)
    # standard errors are those of all rows: a quarter of them has about the same noise
    assert 0.85 < parts.uncertainty.error[0] / whole.uncertainty.error[0] < 1.15
    assert 0.7 < float(parts.policy_standard_error(0.3) / whole.policy_standard_error(0.3)) < 1.4
    found = cb.certify(LINE, parts, samples)
    low, high = found.objective.interval
    assert low < float(whole.history["upper"][-1]) < high


def test_paths_functions_and_polars(tmp_path):
    polars, frame, roles = pytest.importorskip("polars"), table(), {"context": "t", "eta": "d"}
    whole = cb.solve(LINE, cb.Samples.from_frame(frame, **roles), basis=cb.Chebyshev(3))
    paths = [tmp_path / f"{k}.parquet" for k in range(7)]
    for path, part in zip(paths, cut(frame), strict=True):
        part.to_parquet(path)
    for parts in (paths, [lambda part=part: part for part in cut(frame)], list(map(polars.from_pandas, cut(frame)))):
        same(whole, cb.solve(LINE, cb.Samples.from_frame(parts, **roles), basis=cb.Chebyshev(3)), frame)


def test_a_partition_in_which_no_row_counts():
    frame, roles = table(), {"context": "t", "eta": "d", "weights": "w"}
    frame.loc[:24, "w"] = 0.0  # the second partition, after an empty one
    assert not cut(frame)[1]["w"].any()
    whole = cb.solve(LINE, cb.Samples.from_frame(frame, **roles), basis=cb.Chebyshev(3))
    same(whole, cb.solve(LINE, cb.Samples.from_frame(cut(frame), **roles), basis=cb.Chebyshev(3)), frame)


@pytest.mark.parametrize("orthonormal", [False, True])
def test_a_category_that_the_sample_lacks_is_learned(orthonormal):
    frame = table()
    frame["day"] = "workday"
    frame.loc[405:408, "day"] = "holiday"  # four rows of 900
    frame.loc[405:408, "d"] = 5.0
    samples = cb.Samples.from_frame(cut(frame), context=["t", "day"], eta=["d"], sample=50)
    assert set(np.asarray(samples.sample.xi["day"])) == {"workday"}
    basis = cb.Components(t=cb.Chebyshev(1), day=cb.Categorical())
    solution = cb.solve(MIXED, samples, basis=cb.Orthonormal(basis) if orthonormal else basis)
    assert not {"contexts", "rank"} & set(solution.choices)
    at = solution.policy({"t": np.zeros(2), "day": ["holiday", "workday"]})
    assert abs(float(at[0]) - 5) < 0.2
    assert abs(float(at[1])) < 0.5


def test_domains_are_proposed_from_all_partitions():
    frame = table()
    assert repr(cb.domain_of(cut(frame), ["t", "day"])) == repr(cb.domain_of(frame, ["t", "day"]))


def test_what_is_wrong_is_named_with_its_partition():
    frame, roles = table(), {"context": "t", "eta": "d"}
    frame.loc[850, "d"] = np.nan
    with pytest.raises(ValueError, match=r"partition 6: .* missing values, 1 in 'd'"):
        cb.Samples.from_frame(cut(frame), **roles)
    frame = table()
    frame.loc[850, "t"] = 1.5
    samples = cb.Samples.from_frame(cut(frame), **roles, sample=20)
    with pytest.raises(ValueError, match=r"partition 6: .* outside Interval"):
        cb.solve(LINE, samples, basis=cb.Chebyshev(2))
    with pytest.raises(TypeError, match="got int"):
        cb.Samples.from_frame([1, 2], **roles)
    with pytest.raises(ValueError, match="empty"):
        cb.Samples.from_frame([], **roles)
    with pytest.raises(ValueError, match="no partition has any rows"):
        cb.Samples.from_frame([table().iloc[:0]], **roles)
    with pytest.raises(ValueError, match="not a column"):
        cb.Samples.from_frame(cut(table()), context="t", eta="demand")
    samples = cb.Samples.from_frame(cut(table()), **roles)
    with pytest.raises(TypeError, match="cannot see different tables"):
        cb.solve(LINE, cb.Levels(samples, samples))


def test_solvers_on_batches_take_the_rows_here():
    samples = cb.Samples.from_frame(cut(table()), context="t", eta="d")
    solution = cb.solve(LINE, samples, basis=cb.Chebyshev(3), solver=cb.SOBA(), steps=50)
    assert re.search("Batches are drawn from the rows", solution.choices["samples"])


def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    frame, roles = table(), {"context": "t", "eta": "d"}
    whole = cb.solve(LINE, cb.Samples.from_frame(cut(frame), **roles), checkpoint=tmp_path / "whole")
    from cobilevel.derivatives import expansion

    asked, sums = [], expansion.far_sums

    def stops(*args):
        asked.append(1)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return sums(*args)

    monkeypatch.setattr(expansion, "far_sums", stops)
    with pytest.raises(KeyboardInterrupt):
        cb.solve(LINE, cb.Samples.from_frame(cut(frame), **roles), checkpoint=tmp_path / "run")
    again = cb.solve(LINE, cb.Samples.from_frame(cut(frame), **roles), checkpoint=tmp_path / "run")
    assert float(again.x) == float(whole.x)
    with pytest.raises(ValueError, match="another run"):
        cb.solve(LINE, cb.Samples.from_frame(cut(frame.iloc[1:]), **roles), checkpoint=tmp_path / "run")


def test_partitions_are_not_held_once_solved(monkeypatch):
    from cobilevel.derivatives import far_sums

    held, keep = [], far_sums._Kept.keep
    monkeypatch.setattr(far_sums._Kept, "keep", lambda self, *args: held.append(weakref.ref(self)) or keep(self, *args))
    solution = cb.solve(LINE, cb.Samples.from_frame(cut(table()), context="t", eta="d"), basis=cb.Chebyshev(3))
    gc.collect()
    assert held
    assert not any(one() for one in held)
    assert np.isfinite(solution.standard_error)


def test_a_checkpoint_goes_on_where_partitions_lie_elsewhere(tmp_path, monkeypatch):
    """As after the loss of a client: others hold the parts then, and add up in another order."""
    frame, roles = table(3000), {"context": "t", "eta": "d"}

    def solved(groups, questions):
        asked = []

        def ask(self, function, common, *args):
            asked.append(function)
            if len(asked) > questions:
                raise KeyboardInterrupt
            for numbers in groups:
                yield function([(k, self.workers.parts[k].frame) for k in numbers], common, *args)

        monkeypatch.setattr("cobilevel.ground.parts.Parts.ask", ask)
        samples = cb.Samples.from_frame(cut(frame), **roles, sample=500)
        return cb.solve(LINE, samples, basis=cb.Chebyshev(6), checkpoint=tmp_path)

    with pytest.raises(KeyboardInterrupt):
        solved([[0, 2, 4, 6], [1, 3, 5]], 8)
    assert (tmp_path / "rows").is_dir()
    again = solved([[0, 1], [2, 3], [4, 5, 6]], 1000)
    whole = cb.solve(LINE, cb.Samples.from_frame(frame, **roles), basis=cb.Chebyshev(6))
    assert again.converged
    same(whole, again, frame)
