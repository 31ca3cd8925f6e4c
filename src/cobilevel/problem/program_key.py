"""What a traced program says, as a value that compares equal for two traces of the same code."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

# What programs hold of a custom rule: functions made anew by each trace, which say nothing by themselves.
RULES = {"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"}


class _Itself:
    """Something that equals itself alone."""

    def __init__(self, held: Any):
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def key_of(program: Jaxpr) -> tuple:
    """The description of a program: its operations in order, with variables numbered as they come."""
    numbers: dict[Any, int] = {}

    def atom(var: Any) -> Any:
        if isinstance(var, Literal):
            return ("literal", value_key(var.val), _type_key(var.aval))
        return numbers.setdefault(var, len(numbers))

    def bound(variables: Any) -> tuple:
        return tuple((atom(var), _type_key(var.aval)) for var in variables)

    inputs = (bound(program.constvars), bound(program.invars))
    equations = tuple(
        (
            _Itself(equation.primitive),
            tuple(atom(var) for var in equation.invars),
            bound(equation.outvars),
            tuple((name, _parameter_key(name, part)) for name, part in sorted(equation.params.items())),
        )
        for equation in program.eqns
    )
    return (*inputs, equations, tuple(atom(var) for var in program.outvars))


def _type_key(aval: Any) -> tuple:
    return (str(aval), getattr(aval, "weak_type", False))


def _parameter_key(name: str, part: Any) -> Any:
    return "a rule" if name in RULES and not isinstance(part, ClosedJaxpr) else value_key(part)


def value_key(value: Any) -> Any:
    """A value by what it holds: arrays by their bytes, programs by what they say, unknown functions by identity."""
    if isinstance(value, ClosedJaxpr):
        return (key_of(value.jaxpr), tuple(value_key(const) for const in value.consts))
    if isinstance(value, Jaxpr):
        return key_of(value)
    if isinstance(value, tuple | list):
        return (type(value), tuple(value_key(part) for part in value))
    if isinstance(value, dict):
        return (dict, tuple((name, value_key(part)) for name, part in value.items()))
    if isinstance(value, float | complex):
        return (type(value), repr(value))
    if hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, type):
        return _array_key(value)
    try:
        hash(value)
    except TypeError:
        return _Itself(value)
    return (type(value), value)


def _array_key(array: Any) -> tuple:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return (str(array.dtype), array.shape, np.asarray(jax.random.key_data(array)).tobytes())
    return (str(array.dtype), array.shape, np.asarray(array).tobytes(), getattr(array, "weak_type", False))


def holds_rules(program: Jaxpr) -> bool:
    """Whether derivatives of a program are stated by hand somewhere in it."""
    return _any_equation(program, lambda equation: bool(RULES.intersection(equation.params)))


def _any_equation(program: Jaxpr, asked: Callable[[Any], bool]) -> bool:
    def inside(part: Any) -> bool:
        if isinstance(part, ClosedJaxpr):
            return _any_equation(part.jaxpr, asked)
        if isinstance(part, Jaxpr):
            return _any_equation(part, asked)
        return isinstance(part, tuple | list) and any(inside(each) for each in part)

    return any(asked(e) or any(inside(part) for part in e.params.values()) for e in program.eqns)
