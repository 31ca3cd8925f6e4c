"""Public names, their parameters and defaults, and the commands are those of 1.0: `public_names.txt` lists them.

`python tests/system/test_public_names.py` writes the file again, where a change is meant: see docs/stability.md.
"""

import difflib
import enum
import importlib.util
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

import cobilevel as cb
from cobilevel.answer import ReducedProblem
from cobilevel.cli import app
from cobilevel.diagnosis.diagnosis import Advice
from cobilevel.inference import Uncertainty
from cobilevel.judge.certificate import Regret
from cobilevel.lower import Feasibility

HELD = Path(__file__).with_name("public_names.txt")
EXTENSIONS = Path(__file__).parents[2] / "docs" / "_ext"
# Attributes that the guide names, beyond fields and what the reference lists.
READ = {
    "cb.Solution": "detail, feasibility",
    "cb.Certificate": "regret, unresolved, objective, reduced_objective",
    "cb.Diagnosis": "advice, structure",
}
RECORDS = (Uncertainty, Feasibility, Regret, Advice)  # what these attributes hold


def extension(name):
    """A module of the site's own."""
    spec = importlib.util.spec_from_file_location(name, EXTENSIONS / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def signature(value):
    """Parameters with their kinds and defaults, without annotations."""
    found = inspect.signature(value)
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values() if not p.name.startswith("_")]
    words = str(found.replace(parameters=bare, return_annotation=found.empty))
    return re.sub(r"<([A-Z]\w+\.\w+): .*?>", r"\1", words).replace("<factory>", "...")


def lines_of(name, value, members):
    if isinstance(value, type) and issubclass(value, enum.Enum):
        yield from (f"{name}.{member}" for member in value.__members__)
        return
    yield name if name.endswith(")") else name + signature(value)
    known = {*dir(value), *getattr(value, "__dataclass_fields__", ())}
    for member in sorted(members & known):
        held = inspect.getattr_static(value, member, None)
        called = inspect.isfunction(held) or isinstance(held, classmethod | staticmethod)
        yield f"{name}.{member}" + (signature(getattr(value, member)) if called else "")


def commands():
    """Arguments and options of each command, with their defaults."""
    for name, command in sorted(get_command(app).commands.items()):
        words = [f"cobilevel {name}"]
        for parameter in command.params:
            option = parameter.param_type_name == "option"
            value = "" if parameter.default is None or parameter.default is False else f"={parameter.default}"
            words.append(parameter.opts[-1] + value if option else f"{parameter.name.upper()}{value}")
        yield " ".join(words)


def public():
    """The whole of it, a line for each name."""
    names, shown = extension("public_names").public_names(), extension("reference").MEMBERS
    lines = []
    for name, value in sorted(names.items()):
        members = {*shown.get(name, "").split(", "), *READ.get(name, "").split(", ")}
        lines += lines_of(name, value, members)
    lines += lines_of("cb.reduce(...)", ReducedProblem, {"W0", "draw", "lift", "lower", "problem", "upper"})
    lines += [f"{kind.__name__}: {', '.join(field.name for field in fields(kind))}" for kind in RECORDS]
    return "\n".join([*lines, *commands(), ""])


def test_public_names_are_those_of_1_0():
    change = difflib.unified_diff(HELD.read_text().splitlines(), public().splitlines(), "1.0", "now", "", "", 0, "")
    said = "\n".join(change)
    assert not said, f"{said}\nIf this is meant, and docs/stability.md allows it: python {Path(__file__).name}"


def test_a_deprecated_name_works_and_says_what_to_use():
    with pytest.warns(DeprecationWarning, match=r"now cobilevel\.PolynomialDecay; .* removed in 2\.0"):
        assert cb.Polynomial is cb.PolynomialDecay


if __name__ == "__main__":
    HELD.write_text(public())
