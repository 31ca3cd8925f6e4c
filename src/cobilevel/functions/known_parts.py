"""What of an objective depends on the sample alone, computed once for each instead of at every look at it.

An objective ``f(x, y, xi, eta)`` is a list of operations. Those that ``x`` and ``y`` do not enter give the same numbers
whenever a sample comes up again; they are computed beforehand, and the rest of the list works on what they gave.
"""

import math
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.extend.core import Literal
from jaxtyping import Array, PyTree

from .operations import Listing, Operation, perform
from .traced import Traced

# operations that only arrange numbers: done again rather than kept, for what they give may be larger than what they get
_ARRANGE = {"broadcast_in_dim", "reshape", "squeeze", "expand_dims", "convert_element_type", "transpose", "iota"}
_TINY = 64  # numbers in a matrix, up to which a product of its own is not worth the call
_KEPT_TIMES, _KEPT_BYTES = 4, 2**26  # what is kept may take so many times the data, or so many bytes in all


class _Cut:
    """A program cut in two; equal to the cut of an equal one. `left` is what is done after the first part."""

    def __init__(self, objective: Traced):
        self.origin, self.whole = objective.program, objective.listing
        known, makers = {*self.whole.constants, *self.whole.sample}, {}
        self.first, rest = [], []
        for operation in self.whole.operations:
            fixed = all(isinstance(v, Literal) or v in known for v in operation.inputs)
            if fixed and not operation.equation.effects:
                self.first.append(operation)
                known.update(operation.outputs)
                makers.update(dict.fromkeys(operation.outputs, operation))
            else:
                rest.append(operation)
        self._keep(rest, known, makers)

    def _keep(self, rest: list[Operation], known: set[Any], makers: dict[int, Operation]) -> None:
        """Which values to keep for each sample: those the rest looks at, before they are merely arranged."""
        looks = [v for operation in rest for v in operation.inputs] + [self.whole.result]
        stack, again, kept = [v for v in looks if not isinstance(v, Literal) and v in known], set(), {}
        while stack:
            value = stack.pop()
            maker = makers.get(value)
            if maker is None or maker.name not in _ARRANGE:
                kept[value] = None
            elif maker.outputs not in again:
                again.add(maker.outputs)
                stack += [v for v in maker.inputs if not isinstance(v, Literal)]
        self.kept = sorted(value for value in kept if value not in set(self.whole.constants))
        self.gains = any(value in makers for value in self.kept)
        rest = self._with_small_products([op for op in self.first if op.outputs in again] + rest)
        kinds = {place: kind for place, kind in self.whole.kinds.items() if place not in self.kept}
        self.left = replace(self.whole, operations=rest, sample=[None, *self.kept], kinds=kinds)

    def _with_small_products(self, operations: list[Operation]) -> list[Operation]:
        """Operations with the products of tiny matrices marked that both differ from sample to sample."""
        differing, marked = {*self.kept, *self.whole.y}, []
        for operation in operations:
            equation, inputs, outputs, _ = operation
            if any(v in differing for v in inputs if not isinstance(v, Literal)):
                differing.update(outputs)
            sizes = [math.prod(v.aval.shape) for v in equation.invars]
            both = all(not isinstance(v, Literal) and v in differing for v in inputs)
            small = operation.name == "dot_general" and both and max(sizes) <= _TINY
            if small:
                (_, batch), kinds = equation.params["dimension_numbers"], {v.aval.dtype for v in equation.invars}
                small = not batch[0] and kinds == {equation.outvars[0].aval.dtype}
            marked.append(operation._replace(small=small))
        return marked

    def __hash__(self) -> int:
        return hash(self.origin)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Cut) and self.origin == other.origin

    def look(self, constants: list[Array], xi: Array, eta: PyTree) -> list[Array]:
        """The first part, for one sample: what to keep of it."""
        values = dict(zip(self.whole.constants, constants, strict=True))
        values.update(self.whole.entered(self.whole.sample, (xi, eta)))
        perform(self.first, values)
        return [values[place] for place in self.kept]


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
    """The rest of an objective, and what to keep of each of many samples; ``None`` where that would gain nothing or
    take much more room than the samples themselves."""
    if not isinstance(objective, Traced):
        return None
    cut = _Cut(objective)
    if not cut.gains:
        return None
    look = jax.vmap(lambda xi, eta: cut.look(objective.constants, xi, eta))
    size = lambda tree: sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
    if size(jax.eval_shape(look, xi, eta)) > max(_KEPT_TIMES * size((xi, eta)), _KEPT_BYTES):
        return None
    return Rest(objective.constants, cut), jax.jit(look)(xi, eta)
