"""What does each number in the code do? Answers with every constant at half and at twice its value.

Each constant of a module is changed in a process of its own, in which a few small problems are solved and judged. The
table says what changed: how many functions were chosen, ``x`` in standard errors (or relative to its size, where it has
none), the certificate's interval, an error. ``--out`` writes docs/constants.md.
"""

import ast
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "cobilevel"
# Rooms whose numbers take no part in an answer: ports, waiting times, figures, the data of examples, the paper.
APART = ("sweep", "report", "gallery", "paper", "commands", "cli")


def is_number(node):
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def constants():
    """Every number at module level: ``(module, name, value, reason)``; the reason is the comment on its line."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.relative_to(ROOT).with_suffix("").parts[0] in APART:
            continue
        text = path.read_text()
        module = ".".join(("cobilevel", *path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.parse(text).body:
            value = getattr(node, "value", None)
            if not isinstance(node, ast.Assign | ast.AnnAssign) or value is None:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            several = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            pairs = zip(target.elts, value.elts, strict=True) if several else [(target, value)]
            lines = text.splitlines()
            reason = lines[node.end_lineno - 1].partition("#")[2].strip()
            above = node.lineno - 2
            while lines[above].startswith("#") and not lines[node.end_lineno - 1].count("#"):  # a comment of its own
                reason, above = f"{lines[above][1:].strip()} {reason}".strip(), above - 1
            for name, number in pairs:
                if is_number(number):
                    yield module, ast.unparse(name), ast.unparse(number), reason


def battery():
    """Small problems of several kinds, solved and judged."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    import numpy as np

    import cobilevel as cb

    rng = np.random.default_rng(0)
    xi, noise = rng.uniform(size=400), rng.normal(size=400)
    line, data = cb.Interval(0.0, 1.0), cb.Samples(xi, noise)
    aim = lambda x, y, xi, eta: (y - 1.0) ** 2 + 0.1 * x**2
    smooth = cb.Problem(aim, lambda x, y, xi, eta: (y - x * jnp.exp(xi) - 0.3 * eta) ** 2, 0.5, 0.0, line)
    kinked = cb.Problem(aim, lambda x, y, xi, eta: (y - x - jnp.abs(xi - 0.4)) ** 2 + 0.1 * y**4, 0.5, 0.0, line)
    bounded = cb.Problem(
        aim, lambda x, y, xi, eta: (y - x - 2 * xi) ** 2, 0.5, 0.5, line, x_bounds=(0.0, 2.0),
        constraints=[cb.Bounds(0.0, 1.5)],
    )  # fmt: skip
    many = rng.uniform(size=(400, 4))
    box = cb.Problem(
        aim,
        lambda x, y, xi, eta: (y - x * xi[0] - xi[1] * xi[2] - 0.1 * eta) ** 2,
        0.5,
        0.0,
        cb.Box([0.0] * 4, [1.0] * 4),
    )
    roads = cb.gallery.two_edge_traffic(0)
    cases = {
        "noise": (smooth, data, {}),
        "kink": (kinked, data, {}),
        "bounds": (bounded, data, {}),
        "four contexts": (box, cb.Samples(many, noise), {}),
        "roads": (roads.problem, roads.train, {}),
        "SOBA": (smooth, data, {"basis": cb.Chebyshev(4), "solver": cb.SOBA(), "steps": 2000}),
    }
    answers = {}
    for name, (problem, samples, options) in cases.items():
        try:
            solution = cb.solve(problem, samples, **options)
            flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(solution.x)]).tolist()
            error = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(solution.standard_error)]).tolist()
            judged = cb.certify(problem, solution, samples).gradient_norm
            interval = [float(end) for end in judged.interval]
            answers[name] = [flat, error, solution.basis.size, interval, solution.result.name]
        except Exception as problem_met:
            answers[name] = [[], [], 0, [], type(problem_met).__name__]
    return answers


def answers_with(module, name, factor, programs, seconds=90):
    """The battery in a fresh process, with one constant multiplied; programs are compiled once for all of them."""
    command = [sys.executable, __file__, "--one", module, name, str(factor), programs]
    alone = {"OPENBLAS_NUM_THREADS": "1", "NPROC": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | alone, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {}
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def changed(module, name, factor):
    """Changes a constant wherever it is bound."""
    import importlib
    import pkgutil

    import cobilevel

    for part in pkgutil.walk_packages(cobilevel.__path__, "cobilevel."):
        if part.name.split(".")[1] not in APART:
            importlib.import_module(part.name)
    value = getattr(sys.modules[module], name)
    new = type(value)(value * factor) if not isinstance(value, int) else max(1, round(value * factor))
    for other in [m for key, m in sys.modules.items() if key.startswith("cobilevel")]:
        if name in vars(other) and vars(other)[name] == value:
            setattr(other, name, new)


def in_words(before, after):
    """What changed, worst first."""
    if not after:
        return "fails"
    words = []
    for name, (x, error, size, interval, result) in before.items():
        y, _, count, other, ending = after[name]
        if ending != result:
            words.append(f"{name}: {ending}")
            continue
        if count != size:
            words.append(f"{name}: {size} -> {count} functions")
        scales = [e if e and math.isfinite(e) else abs(a) or 1.0 for a, e in zip(x, error, strict=True)]
        moved = max((abs(a - b) / s for a, b, s in zip(x, y, scales, strict=True)), default=0.0)
        if moved > 1e-3:
            words.append(f"{name}: x by {moved:.2g}")
        width = max(map(abs, interval), default=0.0) or 1.0
        wider = max((abs(a - b) / width for a, b in zip(interval, other, strict=True)), default=0.0)
        if wider > 0.05:
            words.append(f"{name}: interval by {wider:.0%}")
    return "; ".join(words) or "same"


def main():
    import harness  # tests load this file without those next to it

    options = harness.arguments(
        __doc__,
        ("--one", str, harness.HIDDEN, {"nargs": 4}),
        ("--workers", os.cpu_count() or 1),
        ("--only", "", "modules whose name contains this"),
        ("--out", Path),
    )
    if options.one:
        module, name, factor, programs = options.one
        import cobilevel

        cobilevel.keep_programs(programs)
        if name:
            changed(module, name, float(factor))
        print(json.dumps(battery()))
        return
    listed = [one for one in constants() if options.only in one[0]]
    print(f"{len(listed)} constants")
    jobs = [(module, name, factor) for module, name, _, _ in listed for factor in (0.5, 2.0)]
    words = []
    with tempfile.TemporaryDirectory() as programs, ThreadPoolExecutor(options.workers) as pool:
        before = answers_with("", "", 1, programs)
        for job, after in zip(jobs, pool.map(lambda job: answers_with(*job, programs), jobs), strict=True):
            words.append(in_words(before, after))
            print(*job, words[-1], flush=True)
    rows, room = [], ""
    for place, (module, name, value, reason) in enumerate(listed):
        here = module.split(".")[1]
        if here != room:
            room = here
            rows += ["", f"## {room}", "", "| constant | value | why | at half | at twice |", "|---|---|---|---|---|"]
        where = f"`{module.removeprefix('cobilevel.')}.{name}`"
        rows.append(f"| {where} | {value} | {reason} | {words[2 * place]} | {words[2 * place + 1]} |")
    page = "\n".join(rows)
    print(page)
    if options.out:
        options.out.write_text(f"{HEAD}\n{page}\n")


HEAD = """# Constants

Every number at the top of a module, its purpose, and the effect of halving and doubling it on six small problems
(noise, a kink, bounds on `y`, four contexts, two roads, SOBA): how many functions are chosen, how far `x` moves in
standard errors, by how much the certificate's interval changes. *same*: no change, to a thousandth of a standard error
and 5% of an interval. Written by `python benchmarks/constants.py --out docs/constants.md`."""


if __name__ == "__main__":
    main()
