"""Solves killed at random moments, and what they come to when they go on.

A child process solves with a checkpoint that is written at every look, and is ended by SIGKILL at a random moment, or
while the checkpoint is being written. It is started again until it ends. Its answer, history and oracle calls are
compared with those of a run that nobody disturbed, bit for bit.

    python benchmarks/killed.py [--kills 30] [--seed 0]
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import harness

SOLVERS = ("Newton", "SOBA", "StocBiO", "SABA", "MRBO", "VRBO")
STEPS = {"Newton": 200, "VRBO": 1000, "MRBO": 2000, "StocBiO": 2000, "SABA": 20_000, "SOBA": 20_000}


def child(name: str, folder: str, stop_in_write: int) -> None:
    """One solve; where `stop_in_write` is positive, the process kills itself in the middle of that write."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import numpy as np

    import cobilevel as cb
    from cobilevel.iteration import checkpoint

    warnings.simplefilter("ignore")
    cb.keep_programs(Path(folder).parent / "programs")
    checkpoint._WRITE_EVERY = checkpoint._WRITE_RARELY = 0.0
    count, replace = [0], os.replace

    def killed_before(source, target):
        if str(target).endswith("checkpoint.npz"):
            count[0] += 1
            if count[0] == stop_in_write:  # half of what was to be written is there
                with open(source, "r+b") as file:
                    file.truncate(os.path.getsize(source) // 2)
                os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = killed_before
    instance = cb.gallery.two_edge_traffic(0)
    solver = getattr(cb, name)()
    basis = cb.Chebyshev(5) if name != "Newton" else cb.Chebyshev(10)
    print("begun", flush=True)
    found = cb.solve(instance.problem, instance.train, basis, solver, steps=STEPS[name], checkpoint=folder)
    digest = hashlib.sha256(json.dumps(found.stats["oracles"], sort_keys=True).encode())
    parts = [*jax.tree.leaves((found.x, found.W)), *(found.history[k] for k in sorted(found.history))]
    for part in [*parts, *found.state.leaves]:
        digest.update(np.ascontiguousarray(part).tobytes())
    print("ended", digest.hexdigest(), found.stats["steps"], flush=True)


def started(name: str, folder: Path, stop_in_write: int = 0) -> subprocess.Popen:
    command = [sys.executable, __file__, "--child", name, str(folder), str(stop_in_write)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen) -> str | None:
    """What a child printed last, or nothing where it was killed."""
    lines = process.communicate()[0].split("\n")
    done = [line for line in lines if line.startswith("ended")]
    return done[0] if done else None


def undisturbed(name: str, folder: Path) -> tuple[str, float]:
    """The answer of a run that ends by itself, and how long it took to, from its first step."""
    ended(started(name, folder / f"{name}-compiles"))
    process = started(name, folder / f"{name}-whole")
    assert process.stdout is not None
    process.stdout.readline()
    clock = time.monotonic()
    answer = ended(process)
    assert answer is not None, name
    return answer, time.monotonic() - clock


def disturbed(name: str, folder: Path, seconds: float, rng: random.Random, in_write: bool) -> tuple[str | None, bool]:
    """The answer of a run that was killed once, and whether the kill met it alive."""
    process = started(name, folder, rng.randint(1, 6) if in_write else 0)
    assert process.stdout is not None
    process.stdout.readline()
    if not in_write:
        time.sleep(rng.uniform(0.0, seconds))
        process.send_signal(signal.SIGKILL)
    met = ended(process) is None
    return ended(started(name, folder)), met


def main() -> None:
    options = harness.arguments(
        __doc__.split("\n")[0],
        ("--kills", 30),
        ("--seed", 0),
        ("--child", str, None, {"nargs": 3}),
    )
    if options.child:
        child(options.child[0], options.child[1], int(options.child[2]))
        return
    rng, same, alive = random.Random(options.seed), 0, 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        whole = {name: undisturbed(name, folder) for name in SOLVERS[: options.kills]}
        print("kill  solver    when          met alive  the same")
        for number in range(options.kills):
            name, in_write = SOLVERS[number % len(SOLVERS)], number % 5 == 4
            answer, met = disturbed(name, folder / f"{name}-{number}", whole[name][1], rng, in_write)
            same, alive = same + (answer == whole[name][0]), alive + met
            when = "in a write" if in_write else "at random"
            print(f"{number + 1:4d}  {name:8s}  {when:12s}  {met!s:9s}  {answer == whole[name][0]}", flush=True)
    print(f"{same} of {options.kills} the same bit for bit; {alive} were killed before they had ended.")
    sys.exit(same < options.kills)


if __name__ == "__main__":
    main()
