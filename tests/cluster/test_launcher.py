"""Processes are started with what they need to find each other, and looked after until they have ended."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cobilevel.cluster import launch
from cobilevel.cluster.environment import place_in

SHOW = """
import os, sys
print("out", os.environ["COBILEVEL_PROCESS"], os.environ["COBILEVEL_PROCESSES"], sys.argv[1:])
print("error", os.environ["COBILEVEL_PROCESS"], file=sys.stderr)
"""
END_ONE = """
import os, sys, time
if os.environ["COBILEVEL_PROCESS"] == "1":
    {end}
time.sleep(60)
"""


@pytest.fixture
def script(tmp_path):
    def written(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return str(path)

    return written


def test_output_is_that_of_the_first_and_errors_are_those_of_all(script, capfd):
    assert launch([script(SHOW), "-n", "7"], 3) == 0
    out, error = capfd.readouterr()
    assert out == "out 0 3 ['-n', '7']\n"
    assert sorted(error.splitlines()) == ["[1] error 1", "[2] error 2", "error 0"]


@pytest.mark.parametrize(("end", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)])
def test_when_one_ends_badly_so_do_the_others(script, capfd, end, code):
    begin = time.monotonic()
    assert launch([script(END_ONE.format(end=end))], 3) == code
    assert time.monotonic() - begin < 20
    assert "process 1 of 3" in capfd.readouterr().err


def test_signals_are_passed_on(script):
    waiting = script(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    code = f"import sys; from cobilevel.cluster import launch; sys.exit(launch([{waiting!r}], 1))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 5
    process.stdout.close()


def test_processes_meet_on_the_loopback_interface(script, tmp_path):
    out = tmp_path / "environment"
    text = f"import json, os; json.dump(dict(os.environ), open({str(out)!r}, 'w'))"
    assert launch([script(text)], 1, shards=2) == 0
    given = json.loads(out.read_text()) | {"COBILEVEL_PROCESSES": "2"}
    place = place_in(given)
    assert place.coordinator.startswith("127.0.0.1:")
    assert (place.shards, place.parent) == (2, os.getpid())


def test_shards_are_a_multiple_of_the_processes(script):
    with pytest.raises(ValueError, match="multiple of the number of processes, 3, got 4"):
        launch([script("")], 3, 4)
