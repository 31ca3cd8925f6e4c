"""A long run on a stream: memory is flat, the history bounded, steps go on."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.thorough
@pytest.mark.long
def test_two_minutes_under_a_limit_of_memory():
    script = Path(__file__).parents[2] / "benchmarks" / "soak.py"
    command = [sys.executable, str(script), "--minutes", "2", "--megabytes", "1200"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "flat, bounded and alive" in done.stdout.splitlines()
