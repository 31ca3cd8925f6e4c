"""Would the tests notice? Small errors are put into the source one at a time, and the tests of the room are run.

Errors are changes of one formula: a sign, a factor of two, a dropped term, an index off by one, an axis, arguments in
the wrong order, a comparison turned round. Those in ``NAMED`` were written by hand; the others are drawn with a fixed
seed, so many from each room. Each runs in a copy of the tree of its own: the room's tests first, the cheap ones before
the others, then those of the rooms that use it and ``tests/regressions``, until one fails. A table says which errors
survived. ``--out`` keeps a line of JSON for each; run again, those already there are left out.

    python benchmarks/mutants.py --jobs 16 --count 400 --out mutants.jsonl
"""

import ast
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import harness

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/cobilevel")
SEED = 0

# Rooms that compute, each with other tests that exercise it.
ROOMS = {
    "solvers": ("laws/test_solvers.py",),
    "derivatives": ("reduction", "lower", "solvers"),
    "reduction": ("derivatives", "solvers"),
    "inference": ("judge",),
    "judge": (),
    "diagnosis": (),
    "adaptive": (),
    "covariates": ("adaptive",),
    "lower": ("problem/test_constraints.py", "judge"),
    "iteration": ("solvers", "laws/test_solvers.py"),
    "basis": ("laws/test_bases.py", "reduction", "adaptive"),
    "study": ("problem/test_constraints.py", "lower", "judge/test_constrained.py"),
    "problem": ("study", "laws/test_data.py", "lower"),
}
# Functions that print, draw, check or count what fits, and files of them: no formulas.
WORDS = ("__repr__", "_repr_html_", "words", "plot", "to_json", "from_json", "to_file", "from_file", "check", "title")
WORDS += ("__check_init__", "__post_init__", "blame", "remarks", "notes", "in_words", "too_large", "require_nodes")
WORDS += ("draw_estimates", "memory")
FILES = ("__init__.py", "certificate.py", "diagnosis.py", "uncertainty.py", "frames.py", "input_checks.py", "result.py")
FILES += ("checkpoint.py",)


@dataclass(frozen=True)
class Mutant:
    """A change of a file: the text from `begin` to `end` (bytes) becomes `new`."""

    path: str
    line: int
    change: str
    begin: int
    end: int
    new: str
    name: str = ""

    @property
    def room(self) -> str:
        return Path(self.path).relative_to(PACKAGE).parts[0]

    @property
    def key(self) -> str:
        """The same in every process, as long as the file stays what it is."""
        text = (ROOT / self.path).read_bytes()
        parts = [self.path.encode(), str((self.begin, self.end)).encode(), self.new.encode(), text]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    def apply(self, tree: Path) -> None:
        text = (ROOT / self.path).read_bytes()
        _write(tree, self.path, text[: self.begin] + self.new.encode() + text[self.end :])

    def undo(self, tree: Path) -> None:
        _write(tree, self.path, (ROOT / self.path).read_bytes())


def _write(tree: Path, path: str, text: bytes) -> None:
    """A source file, without the compiled one: that is told apart by seconds and size alone."""
    file = tree / path
    file.write_bytes(text)
    for old in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        old.unlink()


# -- by hand: errors that tests once did not notice

_COMPARISON, _INTERVALS, _CERTIFY = "judge/comparison.py", "judge/intervals.py", "judge/certify.py"
NAMED = (
    ("noise of y* left in the policy error", _COMPARISON, " - np.asarray(exact.noise, float)", ""),
    (
        "noise of y* left in evaluate's policy error",
        "judge/evaluate.py",
        "mean_estimate(gaps - exact.noise,",
        "mean_estimate(gaps,",
    ),
    ("adjoint error's standard error halved", _COMPARISON, "np.hypot(error, noise)", "np.hypot(error, noise) / 2"),
    ("adjoint error's slope halved", _COMPARISON, "error = 2 * np.sqrt(np.sum(", "error = np.sqrt(np.sum("),
    ("adjoint error's own noise halved", _COMPARISON, "noise = np.sqrt(2 * np.sum(", "noise = np.sqrt(np.sum("),
    (
        "a square's standard error halved",
        _INTERVALS,
        "error = float(np.sqrt(max(variance +",
        "error = 0.5 * float(np.sqrt(max(variance +",
    ),
    (
        "sign of the overfit in F_Phi's gradient",
        _COMPARISON,
        "(NoisyVector(gradient + part.value, part.covariance(own)) for part in slopes)",
        "(NoisyVector(gradient + s * p.value, p.covariance(own)) for s, p in zip((1, -1), slopes, strict=True))",
    ),
    (
        "one draw not counted: of the fit's error",
        _COMPARISON,
        "drawn = 2 * max(float(own.value[0] - best.value[0]), 0.0) ** 2 / W.size",
        "drawn = 0.0",
    ),
    (
        "one draw not counted: of conditional means",
        "lower/per_context.py",
        "(law.rows * (law.rows - 1))",
        "(law.rows * law.rows)",
    ),
    ("one row not counted: degrees of freedom", _INTERVALS, "float(np.sum(shares**2)) - 1", "float(np.sum(shares**2))"),
    ("share of the least in a norm's interval", _INTERVALS, "end(TAILS[0] * least)", "end(TAILS[0])"),
    ("step to the minimum the wrong way", _CERTIFY, "step=-moved", "step=moved"),
    (
        "noise of contexts for crossed data",
        "inference/noise.py",
        "parts = [] if level.law is not None else",
        "parts = [] if by_data is not None else",
    ),
    (
        "noise of contexts for crossed data, left-out groups",
        _COMPARISON,
        "return spread + over_rows, float(group.max())",
        "return spread, float(group.max())",
    ),
    (
        "slope of a nearly flat cut normal: sign",
        "problem/distributions.py",
        "bent = from_mean * wide * (u * u - u) / 2",
        "bent = -from_mean * wide * (u * u - u) / 2",
    ),
    (
        "slope of a nearly flat cut normal: left out",
        "problem/distributions.py",
        "bent = from_mean * wide * (u * u - u) / 2 + ",
        "bent = ",
    ),
    (
        "slope of a nearly flat cut normal: curvature's sign",
        "problem/distributions.py",
        "+ wide**2 * (u**3 - u) / 6",
        "- wide**2 * (u**3 - u) / 6",
    ),
    (
        "the barrier's first length",
        "lower/constraints.py",
        "length = float(smoothing.width) / share**0.5",
        "length = float(smoothing.width)",
    ),
    (
        "the barrier's first length, where none is given",
        "study/standard_form.py",
        "length = length_of(found) if length is None else length",
        "length = 2 * length_of(found) if length is None else length",
    ),
)


def named() -> Iterator[Mutant]:
    for name, file, old, new in NAMED:
        path = str(PACKAGE / file)
        text = (ROOT / path).read_bytes()
        if text.count(old.encode()) != 1:
            print(f"not in the source any more, or more than once: {name}: {old}", file=sys.stderr)
            continue
        begin = text.index(old.encode())
        line = text[:begin].count(b"\n") + 1
        yield Mutant(path, line, f"{old} -> {new}", begin, begin + len(old.encode()), new, name)


# -- drawn

_SWAPPED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: None, ast.Pow: None}
_TURNED = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt}
_OTHER = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax"}
_OTHER |= {"argmax": "argmin", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
_OTHER |= {"cos": "sin", "sin": "cos", "zeros_like": "ones_like", "hypot": "maximum"}
_DROPPED = ("sqrt", "abs", "exp", "log", "cumsum", "real_if_close", "nan_to_num")
_MAKES = ("asarray", "array", "astype", "full", "full_like", "zeros", "ones", "broadcast_to", "reshape", "tile")
_NO_NUMBERS = (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr, ast.Dict, ast.Set, ast.GeneratorExp)


def _is_words(node: ast.AST) -> bool:
    """Whether an expression makes text, or a list of parts, rather than a number."""
    return any(
        isinstance(part, _NO_NUMBERS) or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in ([node.left, node.right] if isinstance(node, ast.BinOp) else [node])
    )


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


class Formulas(ast.NodeVisitor):
    """Collects the changes of a file that are likely to change a number."""

    def __init__(self, path: str):
        self.path, text = path, (ROOT / path).read_text()
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line.encode()))
        self.text, self.made, self.depth = text, [], 0
        self.visit(ast.parse(text))

    def add(self, node: ast.expr, kind: str, new: str) -> None:
        begin = self.starts[node.lineno - 1] + node.col_offset
        end = self.starts[node.end_lineno - 1] + node.end_col_offset
        old = " ".join(self.text.encode()[begin:end].decode().split())
        if ast.dump(ast.parse(new, mode="eval")) != ast.dump(ast.parse(f"({old})", mode="eval")):
            short = lambda words: words if len(words) < 70 else f"{words[:67]}..."
            self.made.append(Mutant(self.path, node.lineno, f"{kind}: {short(old)} -> {short(new)}", begin, end, new))

    # what holds no formula
    def visit_FunctionDef(self, node):
        if any(node.name == word or node.name.lstrip("_").startswith(word.lstrip("_")) for word in WORDS):
            return
        self.depth += 1
        for part in node.body:
            self.visit(part)
        self.depth -= 1

    def visit(self, node):
        if not isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Dict | ast.Import | ast.ImportFrom):
            super().visit(node)

    def visit_AnnAssign(self, node):
        if node.value is not None:
            self.visit(node.value)

    def visit_If(self, node):
        if not any(isinstance(part, ast.Raise) for part in node.body):
            self.visit(node.test)
        for part in (*node.body, *node.orelse):
            self.visit(part)

    def visit_Lambda(self, node):
        self.visit(node.body)

    # formulas
    def visit_BinOp(self, node):
        self.generic_visit(node)
        if not self.depth or type(node.op) not in _SWAPPED or _is_words(node):
            return
        left, swapped = ast.unparse(node.left), _SWAPPED[type(node.op)]
        if swapped is not None:
            other = ast.BinOp(node.left, swapped(), node.right)
            self.add(node, "operator", f"({ast.unparse(other)})")
        if isinstance(node.op, ast.Add | ast.Sub):
            self.add(node, "dropped term", f"({left})")
        if isinstance(node.op, ast.Mult | ast.Div):
            self.add(node, "dropped factor", f"({left})")
        if isinstance(node.op, ast.Mult | ast.Div | ast.MatMult):
            self.add(node, "twice", f"(2 * ({ast.unparse(node)}))")
            self.add(node, "half", f"(0.5 * ({ast.unparse(node)}))")
        if isinstance(node.op, ast.Pow):
            self.add(node, "dropped power", f"({left})")
        if isinstance(node.op, ast.Sub | ast.Div):
            self.add(node, "swapped", f"({ast.unparse(ast.BinOp(node.right, node.op, node.left))})")
        for side in (node.left, node.right):
            if isinstance(side, ast.Constant) and type(side.value) is int:
                self.add(side, "off by one", str(side.value + 1))

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        if not self.depth:
            return
        if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            self.add(node, "sign", f"({ast.unparse(node.operand)})")
        if isinstance(node.op, ast.Invert):
            self.add(node, "not", f"({ast.unparse(node.operand)})")

    def visit_Compare(self, node):
        self.generic_visit(node)
        if self.depth and len(node.ops) == 1 and type(node.ops[0]) in _TURNED and not _is_words(node.left):
            turned = ast.Compare(node.left, [_TURNED[type(node.ops[0])]()], node.comparators)
            self.add(node, "comparison", f"({ast.unparse(turned)})")

    def visit_Subscript(self, node):
        self.generic_visit(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts if self.depth else ():
            for end in (part.lower, part.upper) if isinstance(part, ast.Slice) else ():
                if isinstance(end, ast.Constant) and type(end.value) is int:
                    self.add(end, "off by one", str(end.value + 1))

    def visit_Call(self, node):
        self.generic_visit(node)
        name = _name(node)
        if not self.depth or name in ("isinstance", "range", "getattr", "print", "len", "replace"):
            return
        if name in _OTHER:
            other = ast.unparse(node.func)
            self.add(node.func, "name", other[: len(other) - len(name)] + _OTHER[name])
        if name in _DROPPED and len(node.args) == 1:
            self.add(node, "dropped function", f"({ast.unparse(node.args[0])})")
        for word in node.keywords:
            if word.arg == "axis" and isinstance(word.value, ast.Constant) and word.value.value in (0, 1):
                self.add(word.value, "axis", str(1 - word.value.value))
        plain = [k for k, one in enumerate(node.args) if isinstance(one, ast.Name | ast.Attribute | ast.Subscript)]
        if name == "where" and len(node.args) == 3:
            plain = [1, 2]
        if len(plain) >= 2 and name not in _OTHER and name not in _MAKES:
            i, j = plain[-2:]
            words = [ast.unparse(one) for one in node.args]
            words[i], words[j] = words[j], words[i]
            words += [ast.unparse(word) for word in node.keywords]
            self.add(node, "swapped arguments", f"{ast.unparse(node.func)}({', '.join(words)})")


def drawn(count: int, rooms: list[str]) -> list[Mutant]:
    """So many changes, shared out by the square root of how many there are in a file, each kind as likely as others."""
    rng, by_file = random.Random(SEED), {}
    for room in rooms:
        for path in sorted((ROOT / PACKAGE / room).glob("*.py")):
            if path.name not in FILES:
                made = Formulas(str(path.relative_to(ROOT))).made
                if made:
                    by_file[str(path)] = made
    total, chosen = sum(len(made) ** 0.5 for made in by_file.values()), []
    for made in by_file.values():
        left, share = list(made), max(1, round(count * len(made) ** 0.5 / total))
        rng.shuffle(left)
        seen: Counter = Counter()
        while left and share:
            kinds, lines = Counter(m.change.split(":")[0] for m in left), seen
            weights = [1 / kinds[m.change.split(":")[0]] / (1 + 8 * lines[m.line]) for m in left]
            pick = rng.choices(range(len(left)), weights)[0]
            one = left.pop(pick)
            seen[one.line] += 1
            chosen.append(one)
            share -= 1
    rng.shuffle(chosen)
    return chosen


# -- running


def tests_of(room: str, seconds: dict[str, float]) -> list[str]:
    """The room's own test files, then those of the rooms that use it, then regressions: cheap ones first in each."""
    chosen: list[str] = []
    for group in ((room,), ROOMS[room], ("regressions",)):
        files = []
        for name in group:
            place = ROOT / "tests" / name
            files += [place] if place.suffix else sorted(place.glob("test_*.py"))
        names = [str(file.relative_to(ROOT)) for file in files]
        chosen += sorted((n for n in names if n not in chosen), key=lambda n: (seconds.get(n, 0.0), n))
    return chosen


def environment(tree: Path) -> dict[str, str]:
    flags = {"XLA_FLAGS": "--xla_backend_optimization_level=0", "PYTHONPATH": str(tree / "src"), "MPLBACKEND": "Agg"}
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **flags, **threads, "JAX_PLATFORMS": "cpu"}


RUNNING: set[int] = set()  # groups of processes, to be ended with this one


def run_tests(tree: Path, files: list[str], limit: float, more: tuple[str, ...] = ()) -> tuple[int, str, float]:
    """The exit code (-1 past the limit), the output, and seconds."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line", *more, *files]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment(tree),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    RUNNING.add(process.pid)
    try:
        output, code = process.communicate(timeout=limit)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, code = process.communicate()[0], -1
    RUNNING.discard(process.pid)
    return code, output, time.monotonic() - begin


def copy_of_tree(place: Path) -> Path:
    skipped = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__", "bench", "demo", "*.part", "shared")
    return Path(shutil.copytree(ROOT, place, ignore=skipped))


def failed_test(output: str) -> str:
    for line in reversed(output.splitlines()):
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 1)[1].split(" - ")[0]
    return output.strip().splitlines()[-1][:100] if output.strip() else ""


def baseline(trees: "queue.Queue[Path]", jobs: int, files: list[str], limit: float) -> dict[str, float]:
    """The seconds of each test file on the tree as it is; those that fail there are left out, and said."""
    seconds = {}

    def one(name: str) -> None:
        tree = trees.get()
        code, output, spent = run_tests(tree, [name], limit)
        trees.put(tree)
        if code == 0:
            seconds[name] = round(spent, 1)
        elif code != 5:  # 5: no test in it is run by default
            print(f"left out, fails as it is ({spent:.0f} s): {name}: {failed_test(output)}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, files))
    return seconds


def table(results: list[dict]) -> str:
    """Killed and survived by room, and each survivor."""
    lines, counts = [], Counter((r["room"], r["verdict"]) for r in results)
    lines.append(f"{'room':<14} {'killed':>7} {'survived':>9}")
    for room in sorted({r["room"] for r in results}):
        killed = counts[room, "killed"] + counts[room, "time"]
        lines.append(f"{room:<14} {killed:>7} {counts[room, 'survived']:>9}")
    for verdict in ("survived", "time", "killed"):
        some = sorted((r for r in results if r["verdict"] == verdict), key=lambda r: (r["path"], r["line"]))
        lines.append(f"\n{verdict}: {len(some)}")
        for r in some:
            by = f"  [{r['by']}]" if verdict == "killed" else ""
            lines.append(f"  {r['path']}:{r['line']}: {r['name'] + ': ' if r['name'] else ''}{r['change']}{by}")
    return "\n".join(lines)


def main() -> None:
    given = harness.arguments(
        __doc__,
        ("--jobs", os.cpu_count() or 1, "copies of the tree, each with its tests"),
        ("--count", 300, "errors drawn, beyond those written by hand"),
        ("--rooms", str, None, {"nargs": "*", "default": list(ROOMS), "choices": list(ROOMS), "metavar": "ROOM"}),
        ("--out", Path("mutants.jsonl"), "one line of JSON for each result"),
        ("--limit", 900.0, "seconds for one error, at most"),
        ("--seconds", float("inf"), "begin no more after so many seconds"),
        ("--first", int, "only so many errors: to try it out"),
        ("--only", str, "only errors whose path, name or change holds one of these", {"nargs": "*", "default": ()}),
        ("--named", False, "only those written by hand"),
        ("--list", False, "print the errors, run nothing"),
    )
    begin = time.monotonic()

    mutants = [m for m in named() if m.room in given.rooms]
    if not given.named:
        mutants += drawn(given.count, given.rooms)
    if given.only:
        holds = lambda m: any(word in text for word in given.only for text in (m.path, m.name, m.change))
        mutants = [m for m in mutants if holds(m)]
    mutants = mutants[: given.first]
    if given.list:
        for m in mutants:
            print(f"{m.path}:{m.line}: {m.name + ': ' if m.name else ''}{m.change}")
        return
    before = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    known = {r["key"]: r for r in before if "key" in r}
    seconds = next((r["seconds"] for r in reversed(before) if "seconds" in r and "key" not in r), {})

    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, given.out.open("a") as kept:
        ending = threading.Event()  # what is cut off is neither killed nor survives

        def stop(*_) -> None:
            ending.set()
            for group in tuple(RUNNING):
                os.killpg(group, signal.SIGKILL)
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(1)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        trees: queue.Queue[Path] = queue.Queue()
        for k in range(given.jobs):
            trees.put(copy_of_tree(Path(folder) / str(k)))
        lock = threading.Lock()

        def keep(entry: dict) -> None:
            with lock:
                kept.write(json.dumps(entry) + "\n")
                kept.flush()

        wanted = sorted({file for m in mutants for file in tests_of(m.room, {})} - set(seconds))
        if wanted:
            print(f"{len(wanted)} test files on the tree as it is ...", flush=True)
            seconds = seconds | baseline(trees, given.jobs, wanted, given.limit)
            keep({"seconds": seconds})

        def judge(mutant: Mutant) -> dict | None:
            if mutant.key in known:
                return known[mutant.key]
            if time.monotonic() - begin > given.seconds:
                return None
            files = [file for file in tests_of(mutant.room, seconds) if file in seconds]
            tree = trees.get()
            try:
                mutant.apply(tree)
                code, output, spent = run_tests(tree, files, given.limit)
            finally:
                mutant.undo(tree)
                trees.put(tree)
            if ending.is_set():
                return None
            verdict = {0: "survived", 1: "killed", 2: "killed", -1: "time"}.get(code, "killed")
            by = failed_test(output) if verdict == "killed" else ""
            entry = {"key": mutant.key, "room": mutant.room, "verdict": verdict, "by": by, "spent": round(spent, 1)}
            entry |= {name: part for name, part in asdict(mutant).items() if name not in ("begin", "end")}
            keep(entry)
            where = f"{mutant.path}:{mutant.line}: {mutant.name + ': ' if mutant.name else ''}{mutant.change}"
            print(f"{verdict:<9} {spent:>4.0f} s  {where}  {by}", flush=True)
            return entry

        with ThreadPoolExecutor(given.jobs) as pool:
            results = [entry for entry in pool.map(judge, mutants) if entry is not None]
    print("\n" + table(results))


if __name__ == "__main__":
    main()
