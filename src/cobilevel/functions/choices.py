"""Maxima and minima whose derivatives do not ask which operand the result is equal to.

That is JAX's own rule, and compilers break it: where they compute an operand anew, for the comparison, and round it
otherwise, it is equal to neither, and the derivative is lost, for a third of the rows in the worst case. Operands are
compared with each other here: next to a tie rounding may pick either, and both are right.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import Array

from ..ground import Held
from .operations import Operation


def _chosen(first: Callable, x: Held, y: Held) -> Array:
    """``x`` where `first` says so of ``x, y``, and ``y`` where it says so of ``y, x``; half of each where they are
    equal, or one is NaN."""
    ahead, behind, both = first(x, y), first(y, x), x / 2 + y / 2
    x, y = (jnp.broadcast_to(a, both.shape) for a in (x, y))
    return lax.select(ahead, x, lax.select(behind, y, both))


def _reduced(place: Callable, x: Held, axes: tuple[int, ...], **_: Any) -> Array:
    """The entry at a `place` over some axes: the first of those that are equal."""
    last = jnp.moveaxis(x, axes, range(-len(axes), 0))
    last = last.reshape(*last.shape[: x.ndim - len(axes)], -1)
    here = jnp.expand_dims(place(last, axis=-1), -1) == jnp.arange(last.shape[-1])
    return jnp.sum(jnp.where(here, last, 0), axis=-1)


def _running(first: Callable, x: Held, axis: int, reverse: bool, **_: Any) -> Array:
    return lax.associative_scan(partial(_chosen, first), x, reverse=reverse, axis=axis)


_ANEW = {
    "max": partial(_chosen, lax.gt),
    "min": partial(_chosen, lax.lt),
    "reduce_max": partial(_reduced, jnp.argmax),
    "reduce_min": partial(_reduced, jnp.argmin),
    "cummax": partial(_running, lax.gt),
    "cummin": partial(_running, lax.lt),
}


def _inner(value: Any) -> list[Any]:
    """The programs that a parameter of an operation holds."""
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return [value]
    return [one for part in value for one in _inner(part)] if isinstance(value, tuple | list) else []


def _concerned(body: Jaxpr) -> set[int]:
    """The places of operations through which derivatives pass and that are to be written anew, or hold such."""
    moving, found = {var for var in body.outvars if not isinstance(var, Literal)}, set()
    for place in range(len(body.eqns) - 1, -1, -1):
        equation, name = body.eqns[place], body.eqns[place].primitive.name
        if name == "stop_gradient" or not moving.intersection(equation.outvars):
            continue
        moving.update(var for var in equation.invars if not isinstance(var, Literal))
        parts = [] if name.startswith("custom_") else [one for part in equation.params.values() for one in _inner(part)]
        kinds: list[Any] = [var.aval for var in equation.outvars]
        floats = all(jnp.issubdtype(kind.dtype, jnp.floating) for kind in kinds)
        if (name in _ANEW and floats) or any(_concerned(getattr(one, "jaxpr", one)) for one in parts):
            found.add(place)
    return found


def _written_anew(value: Any) -> Any:
    """The same for what a parameter of an operation holds."""
    if isinstance(value, ClosedJaxpr):
        return by_comparison(value)
    if isinstance(value, Jaxpr):  # without constants: what is to be computed again
        return by_comparison(ClosedJaxpr(value, ())).jaxpr
    if isinstance(value, tuple | list):
        return type(value)(map(_written_anew, value))
    return value


def _run(body: Jaxpr, concerned: set[int], constants: list[Any], arguments: list[Any]) -> list[Any]:
    values = dict(zip((*body.constvars, *body.invars), (*constants, *arguments), strict=True))
    read = lambda atom: atom.val if isinstance(atom, Literal) else values[atom]
    for place, equation in enumerate(body.eqns):
        given, kind = list(map(read, equation.invars)), equation.primitive.name
        if place in concerned and kind in _ANEW:
            made = [_ANEW[kind](*given, **equation.params)]
        else:
            change = _written_anew if place in concerned else lambda part: part
            params = {name: change(part) for name, part in equation.params.items()}
            made = Operation(equation.replace(params=params), (), ())(*given)
        values.update(zip(equation.outvars, made, strict=True))
    return list(map(read, body.outvars))


def by_comparison(program: ClosedJaxpr) -> ClosedJaxpr:
    """The same program, its maxima and minima of floats by comparison; itself where it has none that matter."""
    body = program.jaxpr
    concerned = _concerned(body)
    if not concerned:
        return program
    kinds = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in body.invars]
    held = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in body.constvars]
    made = jax.make_jaxpr(partial(_run, body, concerned))(held, kinds).jaxpr
    count = len(body.constvars)
    made = made.replace(constvars=[*made.constvars, *made.invars[:count]], invars=made.invars[count:])
    return ClosedJaxpr(made, program.consts)
