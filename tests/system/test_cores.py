"""How many threads share the work of a process."""

import os
from threading import current_thread

import pytest

from cobilevel.ground.programs import in_threads

pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")


def names():
    return set(in_threads(lambda _: current_thread().name, list(range(8))))


def test_a_process_keeps_to_the_cores_it_was_granted(monkeypatch):
    """As the workers of dask and of sweeps are."""
    monkeypatch.delenv("NPROC", raising=False)
    assert current_thread().name not in names()
    monkeypatch.setenv("NPROC", "1")
    assert names() == {current_thread().name}
