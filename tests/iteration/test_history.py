"""Histories are bounded, joined, and the same however often a run was stopped."""

import numpy as np
import pytest

from cobilevel.iteration.course import History


def taken(parts, most=8):
    history, last = History(most=most), 0
    for count in parts:
        last += count
        history.add({"upper": np.arange(last - count + 1, last + 1) ** 2.0}, last)
    return history.curves()


@pytest.mark.parametrize("total", [1, 7, 8, 9, 16, 17, 33, 100, 1001])
def test_what_is_kept_depends_on_the_number_of_steps_alone(total):
    one = taken([total])
    assert one["step"][-1] == total
    assert len(one["step"]) <= 9
    np.testing.assert_array_equal(one["upper"], one["step"] ** 2.0)
    for parts in ([1] * total, [total // 2, total - total // 2] if total > 1 else [1]):
        other = taken(parts)
        np.testing.assert_array_equal(other["step"], one["step"])
        np.testing.assert_array_equal(other["upper"], one["upper"])


def test_short_runs_keep_every_step():
    np.testing.assert_array_equal(taken([5, 3])["step"], np.arange(1, 9))


@pytest.mark.parametrize("stop", [3, 9, 21, 40])
def test_a_run_that_goes_on_has_the_history_of_one_that_was_not_stopped(stop):
    early = taken([stop])
    history = History(early, stop, most=8)
    history.add({"upper": np.arange(stop + 1, 61) ** 2.0}, 60)
    whole = taken([60])
    for name, curve in history.curves().items():
        np.testing.assert_array_equal(curve, whole[name])


def test_curves_without_steps_end_where_the_run_stands():
    """Files of earlier versions hold no steps."""
    history = History({"upper": np.array([4.0, 5.0])}, 12)
    history.add({"upper": np.array([6.0])}, 13)
    np.testing.assert_array_equal(history.curves()["step"], [11, 12, 13])


def test_going_back():
    history = History()
    history.add({"upper": np.arange(10.0)}, 10)
    np.testing.assert_array_equal(history.up_to(4).curves()["step"], [1, 2, 3, 4])
    assert history.up_to(0).curves() == {}
