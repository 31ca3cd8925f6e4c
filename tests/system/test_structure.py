"""The house: rooms in order, doors between them, and nothing that grows past what can be read at once."""

import ast
import dataclasses
import importlib.util
import inspect
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import equinox as eqx

import cobilevel
from cobilevel import iteration
from cobilevel.solvers import STOCHASTIC, Newton
from problems import joint, scalar

ROOT = Path(cobilevel.__file__).parent
# A room imports from those before it. Single modules at the root count as rooms; `__init__` is the front door, which
# only programs built on the package may use.
ORDER = (
    "ground", "functions", "problem", "study", "basis",
    "reduction", "derivatives", "lower", "inference", "covariates", "iteration", "solvers", "answer", "diagnosis",
    "adaptive", "judge", "direct", "front_door", "gallery", "sweep", "report", "paper", "__init__", "commands", "cli",
)  # fmt: skip
ROOMS = tuple(name for name in ORDER if (ROOT / name).is_dir())
# What a class of one room may override of a class of a room before it: hooks that are meant to be.
HOOKS = {
    "Solver": {"prepare", "ready", "init", "step", "terminate", "finish", "lasting"},
    "Stochastic": {"prepare", "defaults", "needed", "begin", "update", "terminate", "finish"},
    "Evolving": {"record"},
    "State": {"record"},
    "StochasticState": {"record"},
}
# Names that stand at the top of more than one module, and why.
TWICE = {
    "load": "cobilevel.load reads a solution and gallery.images.load images: both are said with what they load",
}
# Tests for a kind of data outside the room that knows them, and why.
KINDS_ASKED: dict[str, str] = {}

# Modules outside the room of derivatives that take some, and why.
DIFFERENTIATES = {
    "study.standard_form": "a barrier is in units that slopes and curvature at the start show; no method uses them",
    "functions.traced": "what custom rules say is seen from the derivatives alone; nothing is computed with them",
}

DATA = {"Samples", "Product", "Stream", "Levels", "Level", "Data"}
DERIVATIVES = re.compile(r"\bjax\.(grad|value_and_grad|jvp|vjp|hessian|jac\w+|linearize|checkpoint)\b")


class Module(NamedTuple):
    """One file: its dotted name within the package, where it lies, its text and its tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def room(self):
        return self.name.split(".")[0]

    @property
    def package(self):
        """The dotted name of what relative imports are relative to."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def _dotted(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


@cache
def modules():
    files = sorted(ROOT.rglob("*.py"))
    return {_dotted(p): Module(_dotted(p), p, p.read_text(), ast.parse(p.read_text())) for p in files}


class Import(NamedTuple):
    """`name` taken from `source`, a module or a room (dotted, within the package), by `user`."""

    user: Module
    source: str
    name: str


def imports_of(module):
    """Everything a file imports from the package, also inside functions."""
    here = "" if module.name == "__init__" else module.package
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                assert alias.name.split(".")[0] != "cobilevel", f"{module.name}: import {alias.name}"
        if not isinstance(node, ast.ImportFrom):
            continue
        if not node.level:
            assert (node.module or "").split(".")[0] != "cobilevel", f"{module.name}: import within by relative names"
            continue
        parts = here.split(".") if here else []
        base = ".".join(parts[: len(parts) - node.level + 1])
        for alias in node.names:
            source = ".".join(filter(None, (base, node.module)))
            inside = ".".join(filter(None, (source, alias.name)))
            yield Import(module, inside if inside in modules() else source or "__init__", alias.name)


@cache
def all_imports():
    return [one for module in modules().values() for one in imports_of(module)]


def test_the_page_on_constants_names_them_all():
    """What is not there was never tried at half and at twice its value: `python benchmarks/constants.py --out` does."""
    root = Path(__file__).parents[2]
    listed = set(re.findall(r"^\| `([\w.]+)`", (root / "docs" / "constants.md").read_text(), re.M))
    spec = importlib.util.spec_from_file_location("constants", root / "benchmarks" / "constants.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stated = {f"{module.removeprefix('cobilevel.')}.{name}" for module, name, *_ in script.constants()}
    assert stated == listed
    assert len(stated) <= 140


def test_every_room_has_its_place():
    assert {module.room for module in modules().values()} == set(ORDER)


def test_tests_mirror_the_rooms():
    here = Path(__file__).parents[1]
    folders = {path.name for path in here.iterdir() if path.is_dir() and not path.name.startswith("__")}
    assert folders == {*ROOMS, "docs", "laws", "regressions", "system"}


def test_the_page_on_the_house_names_the_rooms_in_order():
    table = re.findall(r"^\| (`.*?`) \|", (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(), re.M)
    named = [name.rstrip("/") for row in table for name in re.findall(r"`(\w+/?)`", row)]
    assert named == [name for name in ORDER if name != "__init__"]


def test_imports_go_one_way():
    """No module imports from a room after its own, not even inside a function."""
    for user, source, name in all_imports():
        there = source.split(".")[0]
        assert ORDER.index(there) <= ORDER.index(user.room), f"{user.name} imports {name} from {source}"


def test_no_room_goes_in_circles():
    """Within a room, too, modules can be put in an order in which each imports from those before it alone."""
    graph = {name: set() for name in modules()}
    for user, source, _ in all_imports():
        if user.path.name != "__init__.py":
            graph[user.name].add(source)
            assert source != user.room, f"{user.name} imports from the door of its own room"
    done = set()
    while len(done) < len(graph):
        free = {name for name, before in graph.items() if name not in done and before & graph.keys() <= done | {name}}
        assert free, f"in a circle: {sorted(graph.keys() - done)}"
        done |= free


def exported(room):
    """The names that the door of a room offers."""
    tree = modules()[room].tree
    names = {alias.asname or alias.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for alias in n.names}
    return names | {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}


def test_other_rooms_are_entered_through_their_door():
    for user, source, name in all_imports():
        there = source.split(".")[0]
        if there == user.room or there not in ROOMS or user.name == "__init__":
            continue
        through = source == there or (source.count(".") == 1 and source.endswith(f".{name}"))
        assert through, f"{user.name} takes {name} out of {source}"
        assert name in exported(there), f"{user.name} takes {name}, which {there} does not offer"


class Class(NamedTuple):
    module: Module
    node: ast.ClassDef

    @property
    def methods(self):
        made = (ast.FunctionDef, ast.AsyncFunctionDef)
        return {n.name for n in self.node.body if isinstance(n, made) and not n.name.startswith("__")}


@cache
def classes():
    """All classes of the package by name, which test_top_level_names_are_unique keeps unique."""
    return {
        node.name: Class(module, node)
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }


def ancestors(name):
    """The classes of the package that a class derives from, near ones first."""
    for base in classes()[name].node.bases:
        parent = base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
        if parent in classes():
            yield parent
            yield from ancestors(parent)


def test_no_call_is_handed_up_through_a_method():
    """A class may override a method of a class in a lower room only where that is a hook."""
    hooks = 0
    for name, (module, _) in classes().items():
        for parent in ancestors(name):
            below = classes()[parent].module.room
            if below == module.room:
                continue
            assert ORDER.index(below) < ORDER.index(module.room)
            changed = classes()[name].methods & classes()[parent].methods
            hooks += len(changed)
            others = changed - HOOKS.get(parent, set())
            assert not others, f"{name} in {module.room} overrides {sorted(others)} of {parent} in {below}"
    assert hooks > 30, "the hooks of the solvers should be among what was looked at"
    for name, allowed in HOOKS.items():
        known = set().union(classes()[name].methods, *(classes()[parent].methods for parent in ancestors(name)))
        assert allowed <= known, f"{name} has no {allowed - known}"


def test_nothing_is_written_twice():
    """No ten lines of code in a row stand in two places."""
    seen = {}
    for module in modules().values():
        lines = [line.strip() for line in module.text.splitlines()]
        lines = [line for line in lines if line and not line.startswith(("from ", "import ", "#"))]
        for k in range(len(lines) - 9):
            window = "\n".join(lines[k : k + 10])
            assert seen.setdefault(window, (module.name, k)) == (module.name, k), f"{module.name}:\n{window}"


def test_few_modules_stand_at_the_root():
    assert len([path for path in ROOT.glob("*.py") if path.name != "__init__.py"]) == 2


def test_files_and_functions_are_of_a_size_to_be_read():
    """Docstrings apart."""
    for module in modules().values():
        assert len(module.text.splitlines()) <= 500, module.name
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef):
                words = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
                assert node.end_lineno - node.lineno + 1 - words <= 60, f"{module.name}.{node.name}"


def test_states_have_few_fields():
    """The state of a solver and the parts it is made of."""
    parts = _records()
    assert {iteration.State, iteration.StochasticState, iteration.Clock} < parts
    for kind in parts:
        assert len(dataclasses.fields(kind)) <= 10, kind.__name__


def _records():
    """Every record in the rooms of solvers that is not a solver itself."""
    rooms = [m for name, m in list(sys.modules.items()) if re.match(r"cobilevel\.(iteration|solvers)\.", name)]
    found = {kind for room in rooms for kind in vars(room).values() if inspect.isclass(kind)}
    own = {kind for kind in found if kind.__module__.startswith(("cobilevel.iteration", "cobilevel.solvers"))}
    held = {kind for kind in own if issubclass(kind, eqx.Module) or kind.__module__.startswith("cobilevel.solvers")}
    records = {kind for kind in held | {iteration.Clock} if dataclasses.is_dataclass(kind)}
    return {kind for kind in records if not issubclass(kind, iteration.Solver)}


def test_a_step_is_about_a_screen():
    for kind in STOCHASTIC:
        assert len(inspect.getsource(kind.update).splitlines()) <= 60, kind.__name__
        assert "Reference:" in kind.__doc__
    assert len(inspect.getsource(Newton.step).splitlines()) <= 60


def top_level_names(module):
    """What a module defines (imports are no definitions)."""
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_top_level_names_are_unique():
    """A name that others may use means one thing in the whole package; private ones are a module's own."""
    named = [name for module in modules().values() for name in set(top_level_names(module))]
    count = Counter(name for name in named if not name.startswith("_"))
    assert {name for name, often in count.items() if often > 1} == set(TWICE)


def test_only_one_room_differentiates():
    """Examples in docstrings apart."""
    for module in modules().values():
        if module.room not in ("derivatives", "gallery") and module.name not in DIFFERENTIATES:
            assert not DERIVATIVES.search(re.sub(r"^ *>>> .*$", "", module.text, flags=re.M)), module.name


def test_kinds_of_data_answer_for_themselves():
    """No ``isinstance`` on them outside their room."""
    asked = Counter()
    for module in modules().values():
        if module.room in ("problem", "study"):
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                asked[module.name] += bool(names & DATA)
            elif isinstance(node, ast.MatchClass):
                asked[module.name] += getattr(node.cls, "id", "") in DATA
    assert {name for name, often in asked.items() if often} == set(KINDS_ASKED)
    assert sum(asked.values()) <= 5


def test_every_file_says_what_it_is():
    for module in modules().values():
        words = ast.get_docstring(module.tree)
        assert words, module.name
        assert " " in words.splitlines()[0], f"{module.name}: one word says too little"
    for room in ROOMS:
        words = ast.get_docstring(modules()[room].tree)
        assert "\n" not in words, room
        assert words.endswith("."), room
        assert ". " not in words, f"{room}: one sentence"


def test_no_backend_is_chosen_for_the_user():
    for module in modules().values():
        assert not re.search(r"matplotlib\.use|switch_backend", module.text), module.name


def test_import_changes_no_switch_and_loads_nothing_heavy():
    code = (
        "import sys, jax; before = dict(jax.config.values); import cobilevel; assert dict(jax.config.values) == before;"
        "heavy = {'matplotlib', 'typer', 'optax', 'sklearn', 'rich'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_data_are_looked_at_once():
    """Few functions of the first rooms are handed the user's samples: they are parsed once, into a study."""
    samples, calls = joint(), []
    package, room = str(ROOT), (str(ROOT / "problem"), str(ROOT / "study"))

    def caller(frame):
        """The nearest file of the package that a call comes from."""
        while frame is not None and not frame.f_code.co_filename.startswith(package):
            frame = frame.f_back
        return "" if frame is None else frame.f_code.co_filename

    def watch(frame, event, _):
        if event != "call" or not frame.f_code.co_filename.startswith(room):
            return
        code = frame.f_code
        given = [n for n in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if n != "self"]
        if any(frame.f_locals.get(name) is samples for name in given) and not caller(frame.f_back).startswith(room):
            calls.append(code.co_qualname)

    problem = scalar(x0=1.0)
    sys.setprofile(watch)
    try:
        cobilevel.solve(problem, samples, basis=cobilevel.Chebyshev(3))
    finally:
        sys.setprofile(None)
    assert "Study.of" in calls
    assert len(calls) <= 3, calls
