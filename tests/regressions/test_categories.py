"""Categories whose strings read as numbers: numbers in data and questions are matched by value, never by position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.problem import enter

pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")

LABELS = ["1", "2", "3"]
DAY = np.tile([3, 1, 2, 2], 30)
VALUE = 10.0 * DAY
KINDS = {
    "strings": DAY.astype(str),
    "whole": DAY,
    "single": DAY.astype(np.float32),
    "objects": DAY.astype(object),
    "jax": jnp.asarray(DAY),
    "pandas": pandas.Series(DAY),
    "categorical": pandas.Series(pandas.Categorical(DAY)),
    "polars": polars.Series(DAY),
}


def stated(domain):
    return cb.Problem(lambda x, y, xi, eta: (x - y) ** 2, lambda x, y, xi, eta: (y - eta) ** 2, 0.0, 0.0, domain)


def coded(domain, xi):
    return np.asarray(enter(domain, xi, data=True).values).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_matched_by_value(kind):
    assert coded(cb.Finite(LABELS), KINDS[kind]) == (DAY - 1).tolist()
    mixed = cb.Mixed(w=cb.Interval(0, 1), day=cb.Finite(LABELS))
    assert coded(mixed, {"w": np.full(len(DAY), 0.5), "day": KINDS[kind]}) == [[0.5, day - 1] for day in DAY.tolist()]


def test_what_a_label_reads_as():
    assert coded(cb.Finite(["True", "False"]), [True, False, True]) == [0, 1, 0]
    assert coded(cb.Finite(["01", "12"]), [12, 1]) == [1, 0]  # as a table reads codes with leading zeros
    assert coded(cb.Finite(["0.1", "0.2", "many"]), np.array([0.2, 0.1], np.float32)) == [1, 0]
    assert coded(cb.Finite(["mon", "tue"]), [1, 0]) == [1, 0]  # no label is a number: positions
    assert coded(cb.Finite(["nan", "inf"]), [1, 0]) == [1, 0]
    assert coded(cb.Finite(["1_0", "1_1"]), [1, 0]) == [1, 0]  # which Python reads as 10 and 11
    with pytest.raises(ValueError, match="holds 7 in 1 of 2 rows, first in row 1; known are '1', '2', '3'"):
        enter(cb.Finite(LABELS), [1, 7], data=True).values
    with pytest.raises(ValueError, match=r"'1' and '1.0' of .* are the same number. Pass strings"):
        enter(cb.Finite(["1", "1.0"]), [1], data=True).values


def test_frames_and_questions_agree_with_strings(tmp_path):
    problem = stated(cb.Finite(LABELS))
    frames = [library.DataFrame({"day": DAY, "value": VALUE}) for library in (pandas, polars)]
    for frame in frames:
        solution = cb.solve(problem, cb.Samples.from_frame(frame, "day", "value"))
        np.testing.assert_allclose(solution.policy(np.array(LABELS)), [10, 20, 30], rtol=1e-6)
        asked = frame[["day"]].head(3)
        for answer in (solution.policy(asked), solution.table(asked)["y"].to_numpy(), solution.policy(DAY[:3])):
            np.testing.assert_allclose(answer, VALUE[:3], rtol=1e-6)
    np.testing.assert_allclose(jax.jit(solution.policy)(jnp.array([1.0, 3.0, 7.0])), [10, 30, np.nan], rtol=1e-6)
    np.testing.assert_allclose(solution.table(np.array([1, 7]))["y"], [10, np.nan], rtol=1e-6)
    kept = cb.load(solution.save(tmp_path / "run.npz"), problem)
    np.testing.assert_allclose(kept.policy([1, 2, 3]), [10, 20, 30], rtol=1e-6)


def test_a_frame_is_asked_by_name():
    """The columns of a frame may stand in any order."""
    domain = cb.Mixed(w=cb.Interval(0, 1), day=cb.Finite(LABELS))
    solution = cb.solve(stated(domain), cb.Samples({"w": np.linspace(0, 1, len(DAY)), "day": DAY}, VALUE))
    frame = pandas.DataFrame({"day": [1, 2, 3], "w": 0.5})
    np.testing.assert_allclose(solution.policy(frame), [10, 20, 30], rtol=1e-5)
    assert "day = 1" in solution.plot(over="w", at={"day": 1}).get_suptitle()
