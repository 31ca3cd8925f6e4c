"""A store of runs under damage: bytes flipped, files cut short, filled with zeros, or replaced, one at a time.

After each, everything is asked of the store. An answer must be the one that was written, or the error a sentence that
says what is damaged; then the store is mended, the runs that are missing are added again, and all must be as before.
"""

import json
import resource
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from cobilevel.sweep import Run, Runs, name_of

SEED = 20240607
KINDS = ("flip", "flip", "flip", "cut", "zeros", "noise", "emptied", "removed")  # single bits most often


def made_runs(count):
    """A few runs with numbers of every kind."""
    rng = np.random.default_rng(0)
    return [
        Run(
            {"kind": "solve", "seed": k, "step": 0.1 * k},
            {"loss": rng.normal(), "words": "as it ended", "x": rng.normal(size=3).tolist()},
            {"curve": rng.normal(size=40), "counts": np.arange(5 * k, dtype=np.int32).reshape(k, 5)},
            {"seconds": 0.25 * k},
        )
        for k in range(count)
    ]


def make_store(folder, table):
    runs = Runs(folder)
    runs.add(table)
    runs.spend(1.5)


def plain(run, curves):
    return dict(run.spec), dict(run.result), dict(run.cost), {k: (v.dtype.str, v.tolist()) for k, v in curves.items()}


def answers(folder, table):
    """Each question that a store is asked, and what it says: an answer, or the error."""
    questions = {
        "find": lambda runs: [plain(run, {}) for run in runs.find(kind="solve")],
        "missing": lambda runs: [name_of(spec) for spec in runs.missing([one.spec for one in table])],
        "origins": lambda runs: dict(runs.origins()),
        "seconds": lambda runs: runs.seconds,
    }
    for k, one in enumerate(table):
        questions[f"get {k}"] = lambda runs, one=one: plain(runs.get(one.spec), runs.curves(one.spec))
    found = {}
    try:
        runs = Runs(folder)
    except Exception as error:
        return dict.fromkeys(questions, error)
    for name, question in questions.items():
        try:
            found[name] = question(runs)
        except Exception as error:
            found[name] = error
    return found


def is_a_sentence(error, name):
    """Whether an error is one that a user can act on."""
    if isinstance(error, KeyError):  # a run that the index made anew does not list: it is not finished
        return name.startswith("get") and "no finished run" in str(error)
    return (
        isinstance(error, ValueError | OSError) and "damaged" in str(error) and type(error) is not json.JSONDecodeError
    )


def damage(path, kind, rng):
    """Damages one file; says how."""
    content = bytearray(path.read_bytes())
    where = int(rng.integers(max(1, len(content))))
    if kind == "removed":
        path.unlink()
        return "removed"
    if kind == "emptied" or not content:
        content = bytearray()
    elif kind == "flip":
        content[where] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        del content[where:]
    else:
        span = slice(where, where + int(rng.integers(1, 200)))
        size = len(content[span])
        content[span] = bytes(size) if kind == "zeros" else rng.bytes(size)
    path.write_bytes(bytes(content))
    return f"{kind} at {where}"


def judge(before, after, gone):
    """What is wrong with the answers after damage, if anything; and how many questions were refused.

    Where the index is `gone`, as after moving a damaged one away, runs are found by their files; their time is not.
    """
    refused = bool(after["missing"])
    for name, expected in before.items():
        if gone and name == "seconds":
            continue
        found = after[name]
        if isinstance(found, Exception):
            refused += 1
            if not is_a_sentence(found, name):
                return f"{name}: {type(found).__name__}: {found}", refused
        elif name != "missing" and found != expected:
            return f"{name}: {found} instead of {expected}", refused
    return None, refused


def mended(folder, before, table):
    """What is wrong after mending, if anything."""
    try:
        runs = Runs(folder)
        runs.mend()
    except ValueError as error:
        if "Move it away" not in str(error):
            return f"mend: {error}"
        (folder / "index.npz").unlink(missing_ok=True)
        runs = Runs(folder)
    again = {name_of(spec) for spec in runs.missing([one.spec for one in table])}
    runs.add([one for one in table if name_of(one.spec) in again])
    after = answers(folder, table)
    for name, expected in before.items():
        if name != "seconds" and repr(after[name]) != repr(expected):  # it may be lost with the index
            return f"after mending, {name}: {after[name]!r} instead of {expected!r}"
    return None


def trial(count, seed=SEED, runs=6):
    """Damages a store so many times; the faults found, and what was counted."""
    rng, faults, seen, table = np.random.default_rng(seed), [], Counter(), made_runs(runs)
    with tempfile.TemporaryDirectory() as place:
        whole, hurt = Path(place) / "whole", Path(place) / "hurt"
        make_store(whole, table)
        before = answers(whole, table)
        assert not any(isinstance(found, Exception) for found in before.values()), before
        files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
        for number in range(count):
            shutil.rmtree(hurt, ignore_errors=True)
            shutil.copytree(whole, hurt)
            chosen = Path("index.npz") if rng.random() < 0.5 else files[int(rng.integers(len(files)))]
            kind = KINDS[int(rng.integers(len(KINDS)))]
            how = damage(hurt / chosen, kind, rng)
            gone = not (hurt / "index.npz").exists()
            fault, refused = judge(before, answers(hurt, table), gone)
            fault = fault or mended(hurt, before, table)
            if fault:
                faults.append(f"{number}: {chosen.name} {how}: {fault}")
            seen[chosen.name] += 1
            seen["noticed"] += refused > 0
    return faults, seen


def main() -> None:
    import harness  # on the path where this is run as a script

    arguments = harness.arguments(__doc__, ("--count", 1500), ("--seed", SEED))
    began = time.perf_counter()
    faults, seen = trial(arguments.count, arguments.seed)
    for name, often in seen.most_common():
        print(f"{name:24s} {often:6d}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{arguments.count} trials in {time.perf_counter() - began:.0f} s, peak memory {peak:.0f} MiB")
    print(f"raw errors or wrong answers: {len(faults)}")
    for fault in faults[:20]:
        print("  ", fault[:600])


if __name__ == "__main__":
    main()
