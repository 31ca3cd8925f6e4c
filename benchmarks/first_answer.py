"""How long is it to the first answer? Each line is a fresh process: seconds, and programs compiled, call by call.

The problem is that of two roads (1000 samples). Times are wall-clock, everything included; run on a quiet machine.
With ``--kept``, compiled programs are kept in a temporary folder and each line is measured twice, the second time with
the folder filled.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

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


def show(name: str, repeats: int, *arguments: str) -> None:
    runs = [measured(CALLS[name], *arguments) for _ in range(repeats)]
    total, found = sorted(runs, key=lambda run: run[0])[len(runs) // 2]
    print(f"{name:<24}{'import, instance':<18}{found['import']:>8.2f} s")
    for label, seconds, programs, spent in found["lines"]:
        parts = ", ".join(f"{kind} {part:.2f}" for kind, part in spent.items())
        print(f"{'':<24}{label:<18}{seconds:>8.2f} s {programs:>4} programs  ({parts})")
    print(f"{'':<24}{'the process':<18}{total:>8.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="of which the median is shown")
    parser.add_argument("--kept", action="store_true", help="also with the programs kept on disk")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    for name in CALLS:
        show(name, arguments.repeats)
    times = []
    for _ in range(arguments.repeats):
        began = time.perf_counter()
        subprocess.run([Path(sys.executable).parent / "cobilevel", "--help"], capture_output=True, check=True)
        times.append(time.perf_counter() - began)
    print(f"{'cobilevel --help':<42}{np.median(times):>8.2f} s")
    if arguments.kept:
        with tempfile.TemporaryDirectory() as folder:
            measured(CALLS["nothing given"], folder)
            print("\nwith the programs kept on disk:")
            show("nothing given", arguments.repeats, folder)


if __name__ == "__main__":
    main()
