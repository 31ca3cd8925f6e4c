"""Digests of traced functions that are the same in every process: what a file or a run is recognised by."""

import dataclasses
import enum
import hashlib
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np
from jax.core import AbstractValue
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from ..keys import is_key
from .program_key import RULES, holds_rules
from .traced import Traced

PARTIAL = "?"  # what a digest ends in that does not see all: a function of Python's inside a program says nothing
# Parameters of operations that change no result: names of functions, where arrays lie, what is compiled.
_NO_MATTER = {
    "name", "inline", "keep_unused", "donated_invars", "ctx_mesh", "debug_info", "sharding", "in_shardings",
    "out_shardings", "in_layouts", "out_layouts", "compiler_options_kvs",
}  # fmt: skip


class _Writer:
    """Writes values into a digest, each with its kind and its length, so that no two lists of them read the same."""

    def __init__(self):
        self.sum, self.partial = hashlib.sha256(), False
        self._within: list[FunctionType] = []

    def words(self, *parts: Any) -> None:
        for part in parts:
            plain = part if isinstance(part, bytes) else str(part).encode()
            self.sum.update(b"%d:" % len(plain))
            self.sum.update(plain)

    def program(self, body: Jaxpr) -> None:
        """The operations in order, with variables numbered as they come."""
        numbers: dict[Any, int] = {}

        def atom(var: Any) -> None:
            if isinstance(var, Literal):
                self.words("literal")
                self.value(var.val)
            else:
                self.words("variable", numbers.setdefault(var, len(numbers)))
            self.kind(var.aval)

        def atoms(name: str, variables: Any) -> None:
            self.words(name, len(variables))
            for var in variables:
                atom(var)

        atoms("constants", body.constvars)
        atoms("arguments", body.invars)
        self.words("operations", len(body.eqns))
        for equation in body.eqns:
            self.words(equation.primitive.name)
            atoms("in", equation.invars)
            atoms("out", equation.outvars)
            for name, part in sorted(equation.params.items()):
                if name not in _NO_MATTER and (name not in RULES or isinstance(part, ClosedJaxpr)):
                    self.words(name)
                    self.value(part)
        atoms("results", body.outvars)

    def kind(self, aval: Any) -> None:
        self.words(aval, getattr(aval, "weak_type", False))

    def array(self, array: Any) -> None:
        plain = np.asarray(jax.random.key_data(array) if is_key(array) else array)
        self.partial |= plain.dtype.hasobject
        self.words("array", array.dtype, plain.shape, getattr(array, "weak_type", False))
        self.words("objects" if plain.dtype.hasobject else np.ascontiguousarray(plain).tobytes())

    def value(self, value: Any) -> None:
        """Anything that programs hold: arrays by their bytes, programs by what they say, records by their fields."""
        if isinstance(value, ClosedJaxpr):
            self.program(value.jaxpr)
            self.value(list(value.consts))
        elif isinstance(value, Jaxpr):
            self.program(value)
        elif isinstance(value, enum.Enum):
            self.words("member", type(value).__name__, value.name)
        elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
            self.words(type(value).__name__, value if isinstance(value, bytes) else repr(value))
        elif isinstance(value, np.dtype | jax.dtypes.extended):
            self.words("dtype", value)
        elif isinstance(value, type):
            self.words("type", value.__module__, value.__qualname__)
        elif isinstance(value, AbstractValue):
            self.kind(value)
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            self.array(value)
        else:
            self._compound(value)

    def _compound(self, value: Any) -> None:
        name = type(value).__name__
        if name in ("PRNGImpl", "PRNGSpec"):  # records of functions; their name says which
            self.words("generator", value)
        elif isinstance(value, tuple | list):
            self.words(name, len(value))
            for part in value:
                self.value(part)
        elif isinstance(value, dict):
            self.words("dict", len(value))
            for key, part in sorted(value.items(), key=lambda item: str(item[0])):
                self.words(key)
                self.value(part)
        elif isinstance(value, set | frozenset):
            self.words("set", *sorted(map(str, value)))
        elif dataclasses.is_dataclass(value):
            self.words("record", name)
            for part in dataclasses.fields(value):
                self.words(part.name)
                self.value(getattr(value, part.name))
        else:
            self._other(value)

    def _other(self, value: Any) -> None:
        """What has no parts: by its words, if these are the same in each process; a function's name is not enough."""
        if isinstance(value, FunctionType):
            self._function(value)
            return
        said = repr(value)
        known = not callable(value) and " at 0x" not in said
        self.partial |= not known
        self.words(type(value).__name__, said if known else getattr(value, "__qualname__", ""))

    def _function(self, function: FunctionType) -> None:
        """A function of Python's by its code and the values it holds; what it looks up by name is not seen."""
        self.partial = True
        self.words("function", function.__qualname__)
        if function in self._within:  # it holds itself
            return
        self._within.append(function)
        self.words(function.__code__.co_code, function.__code__.co_names)
        self.value([part for part in function.__code__.co_consts if not isinstance(part, CodeType)])
        self.value([cell.cell_contents for cell in function.__closure__ or ()])
        self.value(function.__defaults__)
        self._within.pop()

    def digest(self) -> str:
        return self.sum.hexdigest() + PARTIAL * self.partial


def value_digest(*values: Any) -> str:
    """What values are, programs and arrays among them, in 64 hexadecimal digits; with a question mark where not all of
    it could be seen."""
    writer = _Writer()
    for value in values:
        writer.value(value)
    return writer.digest()


def traced_digest(objective: Traced, derivatives: Any) -> str:
    """What a traced function does, with its numbers; where derivatives are stated by hand, also those taken of it."""
    program = objective.program
    leaves = [part.num_leaves for part in program.structure.children()]
    parts = [program.body, leaves, list(objective.constants)]
    if holds_rules(program.body):
        spread = program.structure.unflatten(program.shapes)
        whole = lambda held, *xs: derivatives(lambda *ys: program.in_place(held, *ys))(*xs)
        parts.append(jax.make_jaxpr(whole)(objective.constants, *spread))
    return value_digest(*parts)
