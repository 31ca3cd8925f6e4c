"""An objective as a list of operations on numbered values, to be carried out as it stands or otherwise."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array, PyTree

_CALLS = {"pjit", "jit"}  # whose operations are taken as if they stood outside


def as_traced(leaf: Any, like: jax.ShapeDtypeStruct) -> Array:
    """An argument in the dtype a program was traced for."""
    array = jnp.asarray(leaf)
    if array.shape != like.shape:
        raise ValueError(f"this function was traced for an argument of shape {like.shape}, and got {array.shape}.")
    return array if array.dtype == like.dtype else array.astype(like.dtype)


class Operation(NamedTuple):
    """An operation on numbered values; inputs that are no numbers are literals. `small`: a product of tiny matrices."""

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    small: bool = False

    @property
    def name(self) -> str:
        """What it does."""
        return self.equation.primitive.name

    def __call__(self, *given: Any) -> list[Any]:
        """Carries it out, and returns what it gives."""
        if self.small:
            return [_small_product(given[0], given[1], self.equation.params["dimension_numbers"][0])]
        equation, literal = self.equation, [isinstance(v, Literal) for v in self.equation.invars]
        kinds = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
        body = jax.make_jaxpr(lambda *xs: xs)(*kinds).jaxpr  # new variables: one operand may come in twice
        pairs = zip(equation.invars, body.invars, literal, strict=True)
        alone = equation.replace(invars=[old if fixed else new for old, new, fixed in pairs])
        body = body.replace(eqns=[alone], outvars=equation.outvars)
        return jaxpr_as_fun(ClosedJaxpr(body, []))(*given)


def _small_product(a: Array, b: Array, contract: tuple[Sequence[int], Sequence[int]]) -> Array:
    """A product of matrices by multiplying and adding: for many tiny ones that is one loop, and not one call for
    each."""
    kept = [[k for k in range(part.ndim) if k not in over] for part, over in zip((a, b), contract, strict=True)]
    shape = [part.shape[k] for part, free in zip((a, b), kept, strict=True) for k in free]
    left = a.transpose(*kept[0], *contract[0]).reshape(math.prod(a.shape[k] for k in kept[0]), 1, -1)
    right = b.transpose(*kept[1], *contract[1]).reshape(1, math.prod(b.shape[k] for k in kept[1]), -1)
    return jnp.sum(left * right, axis=-1).reshape(shape)


def _opened(body: Jaxpr, names: dict[Any, Any], fresh: Iterator[int]) -> tuple[list[Operation], list[Any]]:
    """The operations of a program in order, calls opened up; and where its results are."""
    found = []
    name = lambda var: var if isinstance(var, Literal) else names[var]
    for equation in body.eqns:
        inner = equation.params.get("jaxpr") if equation.primitive.name in _CALLS else None
        if inner is not None and not inner.consts:
            inside = dict(zip(inner.jaxpr.invars, map(name, equation.invars), strict=True))
            part, results = _opened(inner.jaxpr, inside, fresh)
            found += part
            names.update(zip(equation.outvars, results, strict=True))
            continue
        inputs = tuple(name(var) for var in equation.invars)
        names.update({var: next(fresh) for var in equation.outvars})
        found.append(Operation(equation, inputs, tuple(names[var] for var in equation.outvars)))
    return found, [name(var) for var in body.outvars]


@dataclass(frozen=True)
class Listing:
    """The operations of an objective, and the places of its arguments among the values they work on.

    `sample` are the places of ``(xi, eta)``, ``None`` for what is not looked at; `kinds` the shapes and dtypes that
    arguments were traced for.
    """

    operations: list[Operation]
    constants: list[int]
    x: list[int]
    y: list[int]
    sample: list[int | None]
    result: Any
    kinds: dict[int, jax.ShapeDtypeStruct]

    @staticmethod
    def of(body: Jaxpr, structure: Any, shapes: Sequence[jax.ShapeDtypeStruct]) -> "Listing":
        """All that a program does, with the structure and the shapes of the arguments ``x, y, xi, eta``."""
        fresh = itertools.count()
        names: dict[Any, Any] = {var: next(fresh) for var in (*body.constvars, *body.invars)}
        inputs = iter([names[var] for var in (*body.constvars, *body.invars)])
        sizes = [part.num_leaves for part in structure.children()]
        counts = (len(names) - sum(sizes), sizes[0], sizes[1], sum(sizes[2:]))
        constants, x, y, sample = (list(itertools.islice(inputs, count)) for count in counts)
        operations, (result,) = _opened(body, names, fresh)
        kinds = dict(zip((*x, *y, *sample), shapes, strict=True))
        return Listing(operations, constants, x, y, [*sample], result, kinds)

    def __call__(self, constants: list[Array], x: PyTree, y: PyTree, xi: Array, eta: PyTree) -> Array:
        """What they come to, one after another."""
        values = dict(zip(self.constants, constants, strict=True))
        values.update(self.entered((*self.x, *self.y, *self.sample), (x, y, xi, eta)))
        perform(self.operations, values)
        return values[self.result]

    def entered(self, places: Sequence[int | None], tree: PyTree) -> Iterator[tuple[int, Array]]:
        """Arguments at their places, in the dtypes they were traced for."""
        for place, leaf in zip(places, jax.tree.leaves(tree), strict=True):
            if place is not None:
                yield place, as_traced(leaf, self.kinds[place]) if place in self.kinds else leaf


def perform(operations: Iterable[Operation], values: dict[int, Any]) -> None:
    """Carries out operations on values, and enters what they give."""
    for operation in operations:
        given = [v.val if isinstance(v, Literal) else values[v] for v in operation.inputs]
        values.update(zip(operation.outputs, operation(*given), strict=True))
