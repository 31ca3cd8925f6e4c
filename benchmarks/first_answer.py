"""How long is it to the first answer? Each line is a fresh process: seconds, and programs compiled, call by call.

The problem is that of two roads (1000 samples). Times are wall-clock, everything included; run on a quiet machine. The
first process is measured again with compiled programs kept on disk, in a temporary folder that another one filled, and
while another process keeps a core busy.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import harness

COUNT = """
import time, sys
began = time.perf_counter()
import jax, jax.monitoring
jax.config.update("jax_enable_x64", True)
programs, spent = [], {"trace": 0.0, "lower": 0.0, "compile": 0.0}
kinds = {"jaxpr_trace": "trace", "jaxpr_to_mlir_module": "lower", "backend_compile": "compile"}
def listen(name, seconds, **_):
    kind = kinds.get(name.rsplit("/", 1)[-1].removesuffix("_duration"))
    if kind:
        spent[kind] += seconds
        programs.extend([name] if kind == "compile" else [])
jax.monitoring.register_event_duration_secs_listener(listen)
import cobilevel as cb
if len(sys.argv) > 1:
    cb.keep_programs(sys.argv[1])
lines = []
def timed(label, call):
    before, count, start = dict(spent), len(programs), time.perf_counter()
    found = call()
    lines.append((label, time.perf_counter() - start, len(programs) - count, {k: spent[k] - before[k] for k in spent}))
    return found
import numpy as np
from cobilevel import gallery
instance = gallery.two_edge_traffic(0)
problem, samples = instance.problem, instance.train
ready = time.perf_counter()
del programs[:]
for kind in spent:
    spent[kind] = 0.0
"""
CALLS = {
    "nothing given": """
found = timed("solve", lambda: cb.solve(problem, samples))
timed("certify", lambda: cb.certify(problem, found, samples))
timed("solve again", lambda: cb.solve(problem, samples))
timed("certify again", lambda: cb.certify(problem, found, samples))
""",
    "Chebyshev(5)": """
basis = cb.Chebyshev(5)
found = timed("solve", lambda: cb.solve(problem, samples, basis))
timed("print", lambda: repr(found))
timed("solve again", lambda: cb.solve(problem, samples, basis))
""",
    "SOBA": """
basis = cb.Chebyshev(5)
timed("solve", lambda: cb.solve(problem, samples, basis, cb.SOBA(), steps=1000))
timed("solve again", lambda: cb.solve(problem, samples, basis, cb.SOBA(), steps=1000))
""",
    "diagnose": """
timed("diagnose", lambda: repr(cb.diagnose(problem, cb.Chebyshev(5), samples)))
timed("diagnose again", lambda: repr(cb.diagnose(problem, cb.Chebyshev(5), samples)))
""",
}
TWICE = """
timed("solve", lambda: cb.solve(problem, samples))
timed("solve again", lambda: cb.solve(problem, samples))
"""
END = """
import json
print(json.dumps({"import": ready - began, "lines": lines}))
"""


def measured(code: str, *arguments: str) -> tuple[float, dict]:
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COUNT + code + END, *arguments], capture_output=True, text=True, check=True
    )
    return time.perf_counter() - began, json.loads(done.stdout.splitlines()[-1])


def show(name: str, code: str, repeats: int, *arguments: str) -> dict:
    """Prints the lines of the median process; returns its seconds and its programs, call by call."""
    runs = [measured(code, *arguments) for _ in range(repeats)]
    total, found = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
    print(f"{name:<24}{'import, instance':<18}{found['import']:>8.2f} s")
    for label, seconds, programs, spent in found["lines"]:
        parts = ", ".join(f"{kind} {part:.2f}" for kind, part in spent.items())
        print(f"{'':<24}{label:<18}{seconds:>8.2f} s {programs:>4} programs  ({parts})")
    print(f"{'':<24}{'the process':<18}{total:>8.2f} s", flush=True)
    calls = {label: (seconds, programs) for label, seconds, programs, _ in found["lines"]}
    return {"import": (found["import"], 0), **calls}


def helped() -> float:
    """Seconds of ``cobilevel --help``."""
    began = time.perf_counter()
    subprocess.run([Path(sys.executable).parent / "cobilevel", "--help"], capture_output=True, check=True)
    return time.perf_counter() - began


@contextmanager
def one_core_busy() -> Iterator[None]:
    """Another process does nothing, as fast as it can."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--repeats", 3, "of which the median is shown"),
        ("--quick", False, "each once"),
        ("--json", Path, "where the measurements are written, with their goals"),
    )
    repeats = 1 if arguments.quick else arguments.repeats
    print(harness.circumstances())
    found = {name: show(name, code, repeats) for name, code in CALLS.items()}
    seconds = float(np.median([helped() for _ in range(repeats)]))
    print(f"{'cobilevel --help':<42}{seconds:>8.2f} s")
    with tempfile.TemporaryDirectory() as folder:
        measured(CALLS["nothing given"], folder)
        kept = show("with programs kept", CALLS["nothing given"], repeats, folder)
    with one_core_busy():
        busy = show("with one core busy", TWICE, repeats)
    first = lambda calls, part: sum(calls[label][part] for label in ("import", "solve", "certify"))
    bare = found["nothing given"]
    lines = [
        ("fresh process: import, solve, certify", first(bare, 0), "s", 6.0),
        ("fresh process: programs of solve and certify", first(bare, 1), "programs", 25),
        ("fresh process, programs kept on disk", first(kept, 0), "s", 2.5),
        ("nothing given, second solve", bare["solve again"][0], "s", 0.3),
        ("nothing given, second solve, one core busy", busy["solve again"][0], "s", 0.5),
        ("Chebyshev(5), first solve", found["Chebyshev(5)"]["solve"][0], "s", 1.5),
        ("Chebyshev(5), second solve", found["Chebyshev(5)"]["solve again"][0], "s", 0.03),
        ("SOBA, 1000 steps, first solve", found["SOBA"]["solve"][0], "s", 2.5),
        ("diagnose, first", found["diagnose"]["diagnose"][0], "s", 2.0),
        ("cobilevel --help", seconds, "s", 0.5),
    ]
    harness.write_measurements(arguments.json, lines)


if __name__ == "__main__":
    main()
