"""What values and traced programs are, written down: to recognise them in this process, or in another."""

import dataclasses
import enum
import hashlib
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np
from jax.core import AbstractValue
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from ..ground import is_key
from .operations import ByKey

PARTIAL = "?"  # ends a digest that does not see everything, such as what a callback into Python does
# Parameters that hold a custom derivative: functions made anew by each trace. The derivatives themselves are looked at.
_RULES = {"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"}
# Parameters that change no result: names of functions, where arrays lie, what is compiled.
_NO_MATTER = {
    "name", "inline", "keep_unused", "donated_invars", "ctx_mesh", "debug_info", "sharding", "in_shardings",
    "out_shardings", "in_layouts", "out_layouts", "compiler_options_kvs",
}  # fmt: skip


class _Identity(ByKey):
    """An object that cannot be hashed, by identity; held, so that no other takes its place."""

    def __init__(self, value: Any):
        super().__init__(id(value))
        self.value = value


class _Description:
    """Values written into a hash, each with its kind and length; `opaque` lists what words do not determine."""

    def __init__(self, *values: Any):
        self.hash, self.partial = hashlib.sha256(), False
        self.opaque: list[Any] = []
        self._within: list[FunctionType] = []
        for value in values:
            self.value(value)

    def words(self, *parts: Any) -> None:
        for part in parts:
            plain = part if isinstance(part, bytes) else str(part).encode()
            self.hash.update(b"%d:" % len(plain) + plain)

    def program(self, body: Jaxpr) -> None:
        """The operations in order, with variables numbered as they appear."""
        numbers: dict[Any, int] = {}

        def atoms(name: str, variables: Any) -> None:
            self.words(name, len(variables))
            for var in variables:
                if isinstance(var, Literal):
                    self.words("literal")
                    self.value(var.val)
                else:
                    self.words("variable", numbers.setdefault(var, len(numbers)))
                self.value(var.aval)

        atoms("constants", body.constvars)
        atoms("arguments", body.invars)
        self.words("operations", len(body.eqns))
        for equation in body.eqns:
            self.words(equation.primitive.name)
            self.opaque.append(equation.primitive)
            atoms("in", equation.invars)
            atoms("out", equation.outvars)
            for name, part in sorted(equation.params.items()):
                if name not in _NO_MATTER and (name not in _RULES or isinstance(part, ClosedJaxpr)):
                    self.words(name)
                    self.value(part)
        atoms("results", body.outvars)

    def value(self, value: Any) -> None:
        """Arrays by their bytes, programs by what they do, records by their fields."""
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
            self.words(value, getattr(value, "weak_type", False))
        elif hasattr(value, "dtype") and hasattr(value, "shape"):
            self._array(value)
        else:
            self._compound(value)

    def _array(self, array: Any) -> None:
        plain = np.asarray(jax.random.key_data(array) if is_key(array) else array)
        self.words("array", array.dtype, plain.shape, getattr(array, "weak_type", False))
        if plain.dtype.hasobject:
            self._unseen(array)
        else:
            self.words(np.ascontiguousarray(plain).tobytes())

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
        elif isinstance(value, FunctionType):
            self._function(value)
        elif callable(value) or " at 0x" in repr(value):
            self.words(name, getattr(value, "__qualname__", ""))
            self._unseen(value)
        else:
            self.words(name, repr(value))

    def _function(self, function: FunctionType) -> None:
        """A Python function by its code and the values it holds; what it looks up by name is not seen."""
        self._unseen(function)
        self.words("function", function.__qualname__)
        if function in self._within:  # it holds itself
            return
        self._within.append(function)
        self.words(function.__code__.co_code, function.__code__.co_names)
        self.value([part for part in function.__code__.co_consts if not isinstance(part, CodeType)])
        self.value([cell.cell_contents for cell in function.__closure__ or ()])
        self.value(function.__defaults__)
        self._within.pop()

    def _unseen(self, value: Any) -> None:
        self.partial = True
        try:
            hash(value)
        except TypeError:
            value = _Identity(value)
        self.opaque.append(value)


def digest(*values: Any) -> str:
    """Values, programs and arrays among them, in 64 hexadecimal digits, the same in every process; followed by a
    question mark where not all of them could be seen."""
    written = _Description(*values)
    return written.hash.hexdigest() + PARTIAL * written.partial


def key_of(*values: Any) -> tuple:
    """Values as a key for this process: two that compare equal do the same."""
    written = _Description(*values)
    return (written.hash.digest(), *written.opaque)


def has_custom_derivatives(program: Jaxpr) -> bool:
    """Whether derivatives of a program are stated by hand somewhere in it."""

    def inside(part: Any) -> bool:
        if isinstance(part, ClosedJaxpr | Jaxpr):
            return has_custom_derivatives(getattr(part, "jaxpr", part))
        return isinstance(part, tuple | list) and any(map(inside, part))

    return any(_RULES.intersection(e.params) or any(map(inside, e.params.values())) for e in program.eqns)
