"""An objective as a list of operations on numbered values: carried out as it stands, cut in two, or asked what
it depends on.

Operations of ``f(x, y, xi, eta)`` that ``x`` and ``y`` do not enter give the same numbers whenever a sample comes up
again: these are computed once for each (``known_parts``), and the rest of the list works on what they gave.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array, PyTree

# operations that only arrange numbers: done again rather than kept, for what they give may be larger than what they get
_ARRANGE = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "transpose", "iota"}
_TINY = 64  # numbers in a matrix, up to which a product of its own is not worth the call
# operations at which a derivative may jump, or that have such within
_SHARP = {
    "abs", "argmax", "argmin", "ceil", "clamp", "cond", "cummax", "cummin", "eq", "floor", "ge", "gt", "le", "lt",
    "max", "min", "ne", "reduce_max", "reduce_min", "round", "scan", "select_n", "sign", "sort", "top_k", "while",
}  # fmt: skip
# operations that JAX differentiates any number of times, for one sample and for many
_DIFFERENTIABLE = {
    "abs", "acos", "acosh", "add", "and", "argmax", "argmin", "asin", "asinh", "atan", "atan2", "atanh",
    "broadcast_in_dim", "clamp", "concatenate", "convert_element_type", "cos", "cosh", "cumsum", "div",
    "dot_general", "dynamic_slice", "eq", "erf", "exp", "exp2", "expm1", "gather", "ge", "gt", "integer_pow",
    "iota", "is_finite", "le", "log", "log1p", "logistic", "lt", "mul", "ne", "neg", "not", "or", "pad", "pow",
    "reduce_sum", "reshape", "rev", "rsqrt", "select_n", "sign", "sin", "sinh", "slice", "split", "sqrt", "square",
    "squeeze", "stack", "sub", "tan", "tanh", "transpose",
}  # fmt: skip
_ALIGNS = {"add", "sub", "gt", "lt"}  # operations on numbers of one kind, entry by entry
_KEPT_TIMES, _KEPT_BYTES = 4, 2**26  # what is kept may take so many times the data, or so many bytes in all


class ByKey:
    """Equal to another of its kind with the same key: a static part of modules, which share compiled programs."""

    def __init__(self, key: Any):
        self.key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._hash == other._hash and self.key == other.key


def as_traced(leaf: Any, like: jax.ShapeDtypeStruct) -> Array:
    """An argument in the dtype a program was traced for."""
    array = jnp.asarray(leaf)
    if array.shape != like.shape:
        raise ValueError(f"this function was traced for an argument of shape {like.shape}, but got {array.shape}.")
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

    def uses(self, places: Any) -> list[bool]:
        """Of each input, whether it is among some values."""
        return [not isinstance(v, Literal) and v in places for v in self.inputs]

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


def _opened(
    body: Jaxpr, names: dict[Any, Any], fresh: Iterator[int], rules: bool = False
) -> tuple[list[Operation], list[Any]]:
    """The operations of a program in order, calls opened up; and where its results are. With `rules`, what has
    derivatives of its own is opened up too."""
    found = []
    name = lambda var: var if isinstance(var, Literal) else names[var]
    for equation in body.eqns:
        inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit") else None
        if rules and equation.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            inner = equation.params.get("call_jaxpr")
        inputs = tuple(map(name, equation.invars))
        if inner is not None:
            held = [Literal(value, var.aval) for value, var in zip(inner.consts, inner.jaxpr.constvars, strict=True)]
            variables = (*inner.jaxpr.constvars, *inner.jaxpr.invars)
            part, results = _opened(inner.jaxpr, dict(zip(variables, (*held, *inputs), strict=True)), fresh, rules)
            found += part
            names.update(zip(equation.outvars, results, strict=True))
            continue
        names.update({var: next(fresh) for var in equation.outvars})
        found.append(Operation(equation, inputs, tuple(names[var] for var in equation.outvars)))
    return found, [name(var) for var in body.outvars]


def _reached(body: Jaxpr, arguments: slice, rules: bool = False) -> tuple[list[Operation], list[bool]]:
    """The operations of a program that some of its arguments enter, and whether each result can depend on them."""
    fresh = itertools.count()
    names: dict[Any, Any] = {var: next(fresh) for var in (*body.constvars, *body.invars)}
    moving, found = {names[var] for var in body.invars[arguments]}, []
    operations, results = _opened(body, names, fresh, rules)
    for operation in operations:
        if any(operation.uses(moving)):
            moving.update(operation.outputs)
            found.append(operation)
    return found, [not isinstance(place, Literal) and place in moving for place in results]


def differentiable(body: Jaxpr) -> bool:
    """Whether derivatives of a program can be taken, as far as its operations are known; calls are opened up."""
    fresh = itertools.count()
    operations, _ = _opened(body, {var: next(fresh) for var in (*body.constvars, *body.invars)}, fresh)
    return all(operation.name in _DIFFERENTIABLE for operation in operations)


def depends_on(body: Jaxpr, arguments: slice) -> list[bool]:
    """Which results of a program can depend on some of its arguments."""
    return _reached(body, arguments)[1]


def may_jump(body: Jaxpr, arguments: slice) -> bool:
    """Whether derivatives of a program can jump as some of its arguments change, as far as its operations show."""
    return any(operation.name in _SHARP for operation in _reached(body, arguments, rules=True)[0])


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
        sizes = [part.num_leaves for part in structure.children()]
        inputs, counts = iter(range(len(names))), (len(names) - sum(sizes), sizes[0], sizes[1], sum(sizes[2:]))
        constants, x, y, sample = (list(itertools.islice(inputs, count)) for count in counts)
        operations, (result,) = _opened(body, names, fresh)
        return Listing(
            operations, constants, x, y, [*sample], result, dict(zip((*x, *y, *sample), shapes, strict=True))
        )

    def __call__(self, constants: list[Array], x: PyTree, y: PyTree, xi: Array, eta: PyTree) -> Array:
        """What they come to, one after another."""
        values = dict(zip(self.constants, constants, strict=True))
        values.update(self.entered((*self.x, *self.y, *self.sample), (x, y, xi, eta)))
        _perform(self.operations, values)
        return values[self.result]

    def widened(self) -> list[tuple[int, tuple[int, ...]]]:
        """Which leaves of ``y``, as they are given, meet an array that is larger in a sum, a difference or a
        comparison, and the shape that comes of it."""
        found = []
        for operation in self.operations:
            if operation.name not in _ALIGNS:
                continue
            shape = operation.equation.outvars[0].aval.shape
            for leaf, y in enumerate(self.y):
                if y in operation.inputs and math.prod(shape) > math.prod(self.kinds[y].shape):
                    found.append((leaf, shape))
        return found

    def entered(self, places: Sequence[int | None], tree: PyTree) -> Iterator[tuple[int, Array]]:
        """Arguments at their places, in the dtypes they were traced for."""
        for place, leaf in zip(places, jax.tree.leaves(tree), strict=True):
            if place is not None:
                yield place, as_traced(leaf, self.kinds[place]) if place in self.kinds else leaf


def _perform(operations: Iterable[Operation], values: dict[int, Any]) -> None:
    """Carries out operations on values, and enters what they give."""
    for operation in operations:
        given = [v.val if isinstance(v, Literal) else values[v] for v in operation.inputs]
        values.update(zip(operation.outputs, operation(*given), strict=True))


class _Cut(ByKey):
    """A program cut in two; equal to the cut of an equal one. `left` is what is done after the first part."""

    def __init__(self, program: Any):
        super().__init__(program)
        self.whole = whole = Listing.of(program.body, program.structure, program.shapes)
        known, makers = {*whole.constants, *whole.sample}, {}
        self.first, rest = [], []
        for operation in whole.operations:
            used = zip(operation.inputs, operation.uses(known), strict=True)
            if all(yes or isinstance(v, Literal) for v, yes in used) and not operation.equation.effects:
                self.first.append(operation)
                known.update(operation.outputs)
                makers.update(dict.fromkeys(operation.outputs, operation))
            else:
                rest.append(operation)
        # kept for each sample: what the rest looks at, before it is merely arranged
        looks = [v for operation in rest for v in operation.inputs] + [whole.result]
        stack, again, kept = [v for v in looks if not isinstance(v, Literal) and v in known], set(), set()
        while stack:
            value = stack.pop()
            maker = makers.get(value)
            if maker is None or maker.name not in _ARRANGE:
                kept.add(value)
            elif maker.outputs not in again:
                again.add(maker.outputs)
                stack += [v for v in maker.inputs if not isinstance(v, Literal)]
        self.kept = sorted(kept.difference(whole.constants))
        self.gains = any(value in makers for value in self.kept)
        rest = self._with_small_products([op for op in self.first if op.outputs in again] + rest)
        kinds = {place: kind for place, kind in whole.kinds.items() if place not in self.kept}
        self.left = replace(whole, operations=rest, sample=[None, *self.kept], kinds=kinds)
        self.look = jax.jit(jax.vmap(self._look, in_axes=(None, 0, 0)))

    def _with_small_products(self, operations: list[Operation]) -> list[Operation]:
        """Operations with the products of tiny matrices marked that both differ from sample to sample."""
        differing, marked = {*self.kept, *self.whole.y}, []
        for operation in operations:
            equation, used = operation.equation, operation.uses(differing)
            differing.update(operation.outputs if any(used) else ())
            small = operation.name == "dot_general" and all(used)
            if small:
                batch, kinds = equation.params["dimension_numbers"][1][0], {v.aval.dtype for v in equation.invars}
                tiny = max(math.prod(v.aval.shape) for v in equation.invars) <= _TINY
                small = tiny and not batch and kinds == {equation.outvars[0].aval.dtype}
            marked.append(operation._replace(small=small))
        return marked

    def _look(self, constants: list[Array], xi: Array, eta: PyTree) -> list[Array]:
        """The first part, for one sample: what to keep of it."""
        values = dict(zip(self.whole.constants, constants, strict=True))
        values.update(self.whole.entered(self.whole.sample, (xi, eta)))
        _perform(self.first, values)
        return [values[place] for place in self.kept]


_cut = lru_cache(64)(_Cut)  # with the program that looks, so that the next run does not compile it again


class Rest(eqx.Module):
    """What is left of an objective: called like it, with what was kept of a sample in place of ``eta``."""

    constants: list[Array]
    cut: _Cut = eqx.field(static=True)

    def __call__(self, x: PyTree, y: PyTree, xi: Array, kept: list[Array]) -> Array:
        return self.listing(self.constants, x, y, xi, kept)

    @property
    def listing(self) -> Listing:
        """What it does."""
        return self.cut.left


def known_parts(objective: Any, xi: Array, eta: PyTree) -> tuple[Rest, list[Array]] | None:
    """The rest of an objective, and what to keep of each of many samples; ``None`` where it is not traced, or where
    that would gain nothing or take much more room than the samples themselves."""
    cut = _cut(objective.program) if hasattr(objective, "program") else None
    if cut is None or not cut.gains:
        return None
    size = lambda tree: sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
    rows = objective.constants, xi, eta
    if size(jax.eval_shape(cut.look, *rows)) > max(_KEPT_TIMES * size((xi, eta)), _KEPT_BYTES):
        return None
    return Rest(objective.constants, cut), cut.look(*rows)
