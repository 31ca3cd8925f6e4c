"""A user's functions as they are now: traced once for each call, their numbers made inputs of compiled programs.

Compiled programs are shared between problems whose functions say the same up to numbers: a cost that is a global
variable, an array behind a closure, an attribute. So a change is seen by the next call, and costs no compilation.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array, PyTree

from ..ground import put
from .choices import by_comparison
from .description import digest, has_custom_derivatives, key_of
from .operations import ByKey, Listing, as_traced, depends_on, differentiable, may_jump

_MAKE = getattr(jax, "make_user_context", None)
_CACHES = None if _MAKE is None else _MAKE(None)  # made at import: everything cached before it is made is lost


def anew() -> AbstractContextManager:
    """Within it, JAX traces afresh, also the bodies of loops that it has traced before."""
    return nullcontext() if _CACHES is None else _CACHES(object())


class Program(ByKey):
    """What a function does with its constants and arguments; equal to another that says the same."""

    def __init__(self, body: Jaxpr, shapes: Sequence[Any], structure: Any, out: Any, rules: ClosedJaxpr | None = None):
        self.body, self.shapes, self.structure, self.out, self.rules = body, tuple(shapes), structure, out, rules
        super().__init__((key_of(body, rules), structure))

    def __repr__(self) -> str:
        return f"Program({len(self.body.eqns)} operations)"

    def __call__(self, constants: list[Array], *args: Any) -> Array:
        return _as_one_operation(self)(constants, self._leaves(args))

    def in_place(self, constants: list[Array], *args: Any) -> Array:
        """The same, operation by operation."""
        return self.run(constants, self._leaves(args))

    def run(self, constants: list[Array], leaves: list[Array]) -> Array:
        """On the leaves of its arguments."""
        held = len(self.body.constvars)
        return jaxpr_as_fun(ClosedJaxpr(self.body, constants[:held]))(*constants[held:], *leaves)[0]

    def _leaves(self, args: tuple) -> list[Array]:
        leaves, structure = jax.tree.flatten(args)
        if len(leaves) != len(self.shapes):
            raise ValueError(f"this function was traced for arguments {self.structure}, but got {structure}.")
        return [as_traced(leaf, like) for leaf, like in zip(leaves, self.shapes, strict=True)]


@lru_cache
def _as_one_operation(program: Program) -> Callable[[list[Array], list[Array]], Array]:
    """A program to be used within others: JAX keeps what it makes of it, derivatives and batches of these."""
    return jax.jit(program.run)


class Traced(eqx.Module):
    """A function of ``x, y, xi, eta`` as it was when traced: its numbers, and what it does with them."""

    constants: list[Array]
    program: Program = eqx.field(static=True)

    def __call__(self, x: PyTree, y: PyTree, xi: Array, eta: PyTree) -> Array:
        return self.program(self.constants, x, y, xi, eta)

    def in_place(self, x: PyTree, y: PyTree, xi: Array, eta: PyTree) -> Array:
        """The same, operation by operation, for a larger function that is traced in turn."""
        return self.program.in_place(self.constants, x, y, xi, eta)

    def digest(self) -> str:
        """What it does, with its numbers and the derivatives stated by hand, the same in every process."""
        leaves = [part.num_leaves for part in self.program.structure.children()]
        return digest(self.program.body, leaves, list(self.constants), self.program.rules)

    @property
    def listing(self) -> Listing:
        """What it does, operation by operation."""
        return Listing.of(self.program.body, self.program.structure, self.program.shapes)

    def uses_last_argument(self) -> bool:
        """Whether the output can depend on the last argument, as far as its operations show."""
        last = self._last()
        return last is not None and any(depends_on(self.program.body, last))

    def may_jump_with_last(self) -> bool:
        """Whether its derivatives can jump as the last argument changes, as far as its operations show."""
        last = self._last()
        return last is not None and may_jump(self.program.body, last)

    def _last(self) -> slice | None:
        """Where the leaves of the last argument are; ``None`` where it has none."""
        leaves = self.program.structure.children()[-1].num_leaves
        return slice(-leaves, None) if leaves else None


def trace_objective(function: Callable, args: tuple, derivatives: Callable[[Callable], Callable]) -> Traced:
    """A function as it is now, for arguments like `args`.

    `derivatives` gives those that will be taken of it: what custom rules say is seen from them.
    """
    arrays, static = eqx.partition(function, eqx.is_array)
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), args))
    call = lambda held, *xs: eqx.combine(held, static)(*xs)
    shapes = structure.unflatten(leaves)
    with anew():
        closed, out = jax.make_jaxpr(call, return_shape=True)(arrays, *shapes)
        closed = by_comparison(closed)
    body, numbers = _hoisted(closed.jaxpr)
    constants = [_own(value) for value in (*closed.consts, *numbers, *jax.tree.leaves(arrays))]
    program = Program(body, leaves, structure, out)
    if has_custom_derivatives(body) and getattr(out, "shape", None) == ():
        whole = lambda held, *xs: derivatives(lambda *ys: program.in_place(held, *ys))(*xs)
        with anew():
            rules = jax.make_jaxpr(whole)(constants, *shapes)
        program = Program(body, leaves, structure, out, rules)
    return Traced(constants, program)


def first_derivatives(function: Callable) -> Callable:
    """Those taken of the upper level."""
    return jax.grad(function, argnums=(0, 1))


def second_derivatives(function: Callable) -> Callable:
    """Those taken of the lower level: its gradients, their derivative along ``y``, and the other way round."""

    def along(x, y, xi, eta):
        slope = lambda x, z: jax.jvp(lambda w: function(x, w, xi, eta), (z,), (z,))[1]
        forth = jax.jvp(lambda z: first_derivatives(function)(x, z, xi, eta), (y,), (y,))
        return forth, jax.grad(slope, argnums=(0, 1))(x, y)

    return along


def check_derivatives(traced: Traced, derivatives: Callable[[Callable], Callable]) -> None:
    """Raises what JAX raises where those derivatives cannot be taken of many samples at once; nothing is computed."""
    if differentiable(traced.program.body):
        return
    kinds = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.constants)
    _check_derivatives(traced.program, kinds, derivatives)


@lru_cache
def _check_derivatives(program: Program, constants: tuple, derivatives: Callable[[Callable], Callable]) -> None:
    many = lambda tree: jax.tree.map(lambda a: jax.ShapeDtypeStruct((2, *a.shape), a.dtype), tree)
    x, y, xi, eta = jax.tree.unflatten(program.structure, program.shapes)

    def each(held: list[Array], *args: Any) -> Any:
        return jax.vmap(derivatives(lambda *ys: program(held, *ys)), in_axes=(None, 0, 0, 0))(*args)

    jax.eval_shape(each, list(constants), x, many(y), many(xi), many(eta))


def _own(value: Any) -> Array:
    """A constant as an array that no one else can change."""
    if isinstance(value, jax.Array):
        return value
    if isinstance(value, Literal):
        kind: Any = value.aval
        weak = kind.weak_type and kind.dtype == jnp.result_type(float)
        number: Any = value.val
        return jnp.asarray(float(number)) if weak else put(np.array(number, kind.dtype))
    return put(np.array(value))


def _hoisted(body: Jaxpr) -> tuple[Jaxpr, list[Any]]:
    """The program with the floats in it as constants, and these."""
    found: list[Any] = [atom for e in body.eqns for k, atom in enumerate(e.invars) if _is_number(e, k, atom)]
    if not found:
        return body, []
    fresh = iter(variables := _variables(*((n.aval.dtype, n.aval.weak_type) for n in found)))
    equations = [
        e.replace(invars=[next(fresh) if _is_number(e, k, atom) else atom for k, atom in enumerate(e.invars)])
        for e in body.eqns
    ]
    return body.replace(constvars=[*body.constvars, *variables], eqns=equations), found


@lru_cache
def _variables(*kinds: tuple[Any, bool]) -> list[Any]:
    """Variables of a program, one for each kind of number."""
    numbers = [jax.ShapeDtypeStruct((), dtype, weak_type=weak) for dtype, weak in kinds]
    return jax.make_jaxpr(lambda *xs: xs)(*numbers).jaxpr.invars


def _is_number(equation: Any, place: int, atom: Any) -> bool:
    """Whether an operand is a float that may change from one problem to the next.

    Left where they are: operands of custom rules, which see their type, and common powers, which compile to less.
    """
    kind: Any = getattr(atom, "aval", None)
    if not isinstance(atom, Literal) or not jnp.issubdtype(kind.dtype, jnp.floating) or kind.shape:
        return False
    name = str(equation.primitive)
    if name == "pow" and place == 1 and float(2 * atom.val).is_integer():
        return False
    return not name.startswith("custom_")


class Drawing(ByKey):
    """The part of a sampler that is not numbers, and the program it was seen to be; equal to no other without one."""

    def __init__(self, rest: Any, finish: Callable[[Any], Any], program: ClosedJaxpr | None):
        self.rest, self.finish, self.program = rest, finish, program
        super().__init__(object() if program is None else key_of(program))


class Sampler(eqx.Module):
    """A user's function that draws, as it is now: samplers that do the same share compiled programs.

    Arrays that a callable pytree holds are inputs of these; those that a plain function holds are part of what it does.
    """

    arrays: Any
    drawing: Drawing = eqx.field(static=True)

    def __init__(self, function: Callable, *example: Any, finish: Callable[[Any], Any] = lambda drawn: drawn):
        self.arrays, rest = eqx.partition(function, eqx.is_array)
        few = 3  # draws, which are traced and not made
        try:
            with anew():
                call = lambda held, *args: finish(eqx.combine(held, rest)(*args, few))
                program = jax.make_jaxpr(call)(self.arrays, *example)
        except Exception:
            program = None  # a user's function may raise anything: its first use raises it again, where it can be named
        self.drawing = Drawing(rest, finish, program)

    def __call__(self, *args: Any) -> Any:
        return self.drawing.finish(eqx.combine(self.arrays, self.drawing.rest)(*args))
