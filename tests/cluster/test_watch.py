"""The watch names the process that does not answer, and only then ends this one."""

import json
import os
import time

import pytest

from cobilevel.cluster import watch
from cobilevel.cluster.watch import ENDED_BY_PEER, PeerWatch, end_with


class Board:
    """A meeting point of one process."""

    def __init__(self):
        self.notes = {}

    def key_value_set(self, key, text, allow_overwrite):
        assert allow_overwrite
        self.notes[key] = text

    def key_value_dir_get(self, root):
        return [(key, text) for key, text in self.notes.items() if key.startswith(root)]


@pytest.fixture
def pair(monkeypatch):
    """Two watches that look at one board, and a clock to move."""
    board, clock = Board(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return PeerWatch(board, 0, 2), PeerWatch(board, 1, 2), clock


def looked(one):
    """What a watch sees now."""
    one._read()
    return one._trouble()


def test_as_long_as_both_beat_nothing_is_wrong(pair):
    one, other, clock = pair
    for second in range(30):
        clock[0] = float(second)
        other._beat()
        assert looked(one) == ""


def test_a_silent_process_is_named(pair):
    one, other, clock = pair
    other._beat()
    assert looked(one) == ""
    clock[0] = 9.9
    assert looked(one) == ""
    clock[0] = 10.1
    words = looked(one)
    assert words.startswith("process 1 of 2 (")
    assert f"pid {os.getpid()}) has not answered for 10 s" in words


def test_one_that_has_left_in_order_is_not_missed(pair):
    one, other, clock = pair
    other.leave()
    looked(one)
    clock[0] = 100.0
    assert looked(one) == ""


def test_one_that_failed_is_quoted(pair):
    one, other, _ = pair
    other.leave("ValueError: no such road")
    assert "process 1 of 2" in looked(one)
    assert "(ValueError: no such road)" in looked(one)


def test_a_meeting_point_that_does_not_answer(pair):
    one, _, clock = pair
    clock[0] = 10.1
    assert "meeting point" in one._trouble()
    one._forgive()  # it was this process that stood still
    assert one._trouble() == ""


def test_the_process_that_started_this_one_is_gone(pair):
    one, _, _ = pair
    one.parent = os.getppid()
    assert one._trouble() == ""
    one.parent = os.getpid()
    assert "started this one is gone" in one._trouble()


def test_the_last_words(capfd):
    codes = []
    end_with("process 1 of 2 has ended", codes.append)
    assert codes == [ENDED_BY_PEER]
    words = capfd.readouterr().err
    assert words.startswith("cobilevel: process 1 of 2 has ended. Ending this process too")
    assert "checkpoint" in words


def test_beats_are_json_that_says_who(pair):
    one, _, _ = pair
    one._beat()
    said = json.loads(one.client.notes[f"{watch._ROOT}0"])
    assert (said["pid"], said["state"]) == (os.getpid(), "at work")
