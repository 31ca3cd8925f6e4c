"""What of an objective depends on the sample alone, computed once for each instead of at every look at it.

An objective ``f(x, y, xi, eta)`` is a list of operations. Those that ``x`` and ``y`` do not enter give the same numbers
whenever a sample comes up again; they are computed beforehand, and the rest of the list works on what they gave.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, Literal
from jaxtyping import Array, PyTree

from .traced import Program, Traced, as_traced

# operations that only arrange numbers: done again rather than kept, for what they give may be larger than what they get
_ARRANGE = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "transpose", "iota"}
_CALLS = {"pjit", "jit"}  # whose operations are taken as if they stood outside
_TINY = 64  # numbers in a matrix, up to which a product of its own is not worth the call
_KEPT_TIMES, _KEPT_BYTES = 4, 2**26  # what is kept may take so many times the data, or so many bytes in all


class _Operation(NamedTuple):
    """An operation on numbered values; inputs that are no numbers are literals."""

    equation: Any
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]


def _operations(body: Jaxpr, names: dict[Any, Any], fresh: Iterator[int]) -> tuple[list[_Operation], list[Any]]:
    """The operations of a program in order, calls opened up; and where its results are."""
    found = []
    name = lambda var: var if isinstance(var, Literal) else names[var]
    for equation in body.eqns:
        inner = equation.params.get("jaxpr") if equation.primitive.name in _CALLS else None
        if inner is not None and not inner.consts:
            inside = dict(zip(inner.jaxpr.invars, map(name, equation.invars), strict=True))
            part, results = _operations(inner.jaxpr, inside, fresh)
            found += part
            names.update(zip(equation.outvars, results, strict=True))
            continue
        inputs = tuple(name(var) for var in equation.invars)
        names.update({var: next(fresh) for var in equation.outvars})
        found.append(_Operation(equation, inputs, tuple(names[var] for var in equation.outvars)))
    return found, [name(var) for var in body.outvars]


def _small_product(a: Array, b: Array, contract: tuple[Sequence[int], Sequence[int]]) -> Array:
    """A product of matrices by multiplying and adding: for many tiny ones that is one loop, and not one call for
    each."""
    kept = [[k for k in range(part.ndim) if k not in over] for part, over in zip((a, b), contract, strict=True)]
    shape = [part.shape[k] for part, free in zip((a, b), kept, strict=True) for k in free]
    left = a.transpose(*kept[0], *contract[0]).reshape(math.prod(a.shape[k] for k in kept[0]), 1, -1)
    right = b.transpose(*kept[1], *contract[1]).reshape(1, math.prod(b.shape[k] for k in kept[1]), -1)
    return jnp.sum(left * right, axis=-1).reshape(shape)


def _perform(operations: Sequence[_Operation], values: dict[int, Any], small: frozenset = frozenset()) -> None:
    """Carries out operations on values, and enters what they give; those in `small` are small products."""
    for equation, inputs, outputs in operations:
        given = [v.val if isinstance(v, Literal) else values[v] for v in inputs]
        if outputs in small:
            values[outputs[0]] = _small_product(given[0], given[1], equation.params["dimension_numbers"][0])
            continue
        bound = equation.primitive.get_bind_params(equation.params)
        functions, settings = bound if isinstance(bound, tuple) else ((), bound)  # by the version of JAX
        with equation.ctx.manager:
            result = equation.primitive.bind(*functions, *given, **settings)
        values.update(zip(outputs, result if equation.primitive.multiple_results else [result], strict=True))


class _Cut:
    """A program cut in two; equal to the cut of an equal program."""

    def __init__(self, program: Program):
        body, self.origin = program.body, program
        fresh = itertools.count()
        names: dict[Any, Any] = {var: next(fresh) for var in (*body.constvars, *body.invars)}
        inputs = [names[var] for var in (*body.constvars, *body.invars)]
        sizes = [part.num_leaves for part in program.structure.children()]
        held = len(inputs) - sum(sizes)
        self.constants, free = inputs[:held], held + sizes[0] + sizes[1]
        self.point, self.sample, self.decision = inputs[held:free], inputs[free:], sizes[0]
        operations, (self.result,) = _operations(body, names, fresh)
        known, makers = {*self.constants, *self.sample}, {}
        self.first, self.rest = [], []
        for operation in operations:
            fixed = all(isinstance(v, Literal) or v in known for v in operation.inputs)
            if fixed and not operation.equation.effects:
                self.first.append(operation)
                known.update(operation.outputs)
                makers.update(dict.fromkeys(operation.outputs, operation))
            else:
                self.rest.append(operation)
        self._keep(known, makers)

    def _keep(self, known: set[int], makers: dict[int, _Operation]) -> None:
        """Which values to keep for each sample: those the rest looks at, before they are merely arranged."""
        looks = [v for operation in self.rest for v in operation.inputs] + [self.result]
        stack, again, kept = [v for v in looks if not isinstance(v, Literal) and v in known], set(), {}
        while stack:
            value = stack.pop()
            maker = makers.get(value)
            if maker is None or maker.equation.primitive.name not in _ARRANGE:
                kept[value] = None
            elif maker.outputs not in again:
                again.add(maker.outputs)
                stack += [v for v in maker.inputs if not isinstance(v, Literal)]
        self.kept = sorted(value for value in kept if value not in set(self.constants))
        self.rest = [operation for operation in self.first if operation.outputs in again] + self.rest
        self.gains = any(value in makers for value in self.kept)
        self.small = self._small_products()

    def _small_products(self) -> frozenset:
        """The products of tiny matrices that both differ from sample to sample."""
        differing, found = {*self.kept, *self.point[self.decision :]}, set()
        for equation, inputs, outputs in self.rest:
            if not any(v in differing for v in inputs if not isinstance(v, Literal)):
                continue
            differing.update(outputs)
            sizes = [math.prod(v.aval.shape) for v in equation.invars]
            both = all(not isinstance(v, Literal) and v in differing for v in inputs)
            if equation.primitive.name == "dot_general" and both and max(sizes) <= _TINY:
                (_, batch), kinds = equation.params["dimension_numbers"], {v.aval.dtype for v in equation.invars}
                if not batch[0] and kinds == {equation.outvars[0].aval.dtype}:
                    found.add(outputs)
        return frozenset(found)

    def __hash__(self) -> int:
        return hash(self.origin)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cut) and self.origin == other.origin

    def _entered(self, places: Sequence[int], tree: PyTree, shapes: Sequence[Any]) -> Iterator[tuple[int, Array]]:
        """Arguments in the dtypes they were traced for, at their places."""
        leaves = jax.tree.leaves(tree)
        return ((place, as_traced(leaf, like)) for place, leaf, like in zip(places, leaves, shapes, strict=True))

    def look(self, constants: list[Array], xi: Array, eta: PyTree) -> list[Array]:
        """The first part, for one sample: what to keep of it."""
        values = dict(zip(self.constants, constants, strict=True))
        values.update(self._entered(self.sample, (xi, eta), self.origin.shapes[-len(self.sample) :]))
        _perform(self.first, values)
        return [values[place] for place in self.kept]

    def __call__(self, constants: list[Array], x: PyTree, y: PyTree, kept: list[Array]) -> Array:
        """The rest."""
        values = dict(zip(self.constants, constants, strict=True))
        values.update(self._entered(self.point, (x, y), self.origin.shapes[: len(self.point)]))
        values.update(zip(self.kept, kept, strict=True))
        _perform(self.rest, values, self.small)
        return values[self.result]


class Rest(eqx.Module):
    """What is left of an objective: called like it, with what was kept of a sample in place of ``eta``."""

    constants: list[Array]
    cut: _Cut = eqx.field(static=True)

    def __call__(self, x: PyTree, y: PyTree, xi: Array, kept: list[Array]) -> Array:
        return self.cut(self.constants, x, y, kept)


def known_parts(objective: Any, xi: Array, eta: PyTree) -> tuple[Rest, list[Array]] | None:
    """The rest of an objective, and what to keep of each of many samples; ``None`` where that would gain nothing or
    take much more room than the samples themselves."""
    if not isinstance(objective, Traced):
        return None
    cut = _Cut(objective.program)
    if not cut.gains:
        return None
    look = jax.vmap(lambda xi, eta: cut.look(objective.constants, xi, eta))
    size = lambda tree: sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
    if size(jax.eval_shape(look, xi, eta)) > max(_KEPT_TIMES * size((xi, eta)), _KEPT_BYTES):
        return None
    return Rest(objective.constants, cut), jax.jit(look)(xi, eta)
