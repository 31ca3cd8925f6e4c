r"""Objectives at $y = \sum_k \phi_k W_k$ for many samples at once, without forming a $y$ for each.

A sample has its own $\phi$, and $W$ is the same for all. What is linear in $y$ is then done with the $W_k$ first and
with $\phi$ last: $a^T y$ is $\sum_k \phi_k\, (a^T W_k)$, one product of matrices for a whole batch, and $|y|^2$ is
$\phi^T G \phi$ with the matrix $G_{kl} = \langle W_k, W_l \rangle$, which is the same for all samples. So a value that
is linear in $y$ is carried in factors, parts and a $\phi$, as long as no operation asks for its numbers.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array, Float, PyTree

from ..basis import OneHot, Rows
from ..functions import Listing, Operation

# operations, and the operands in which they are linear
_LINEAR = dict.fromkeys(
    (
        "neg", "reshape", "squeeze", "expand_dims", "transpose", "broadcast_in_dim", "slice", "rev", "reduce_sum",
        "cumsum", "copy", "dynamic_slice", "gather", "div",
    ),
    (0,),
) | {"mul": (0, 1), "dot_general": (0, 1)}  # fmt: skip
_SUMS = {"add", "add_any", "sub"}
# When it pays, as measured on processors: a product with y costs as many multiplications either way, but as one product
# of matrices for a batch it runs several times faster. Against that stand the operations on phi that come on top.
_FEWER = 8  # times fewer numbers a sample than there are in y
_EXACT = jax.lax.Precision.HIGHEST  # of products that stand for sums of numbers, which no one would round


class _Factors(NamedTuple):
    """The value ``sum_k phi[k] parts[k]``: parts that are the same for all samples, and one sample's ``phi``."""

    parts: Array
    phi: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.parts.shape[1:]

    def each(self, one: Callable[[Array], Array]) -> "_Factors":
        """What a linear function makes of it."""
        return _Factors(jax.vmap(one)(self.parts), self.phi)

    def pairs(self, other: "_Factors", two: Callable[[Array, Array], Array]) -> "_Factors":
        """What a function that is linear in each of two operands makes of both; its parts are a sample's own."""
        table = jax.vmap(jax.vmap(two, in_axes=(None, 0)), in_axes=(0, None))(self.parts, other.parts)
        return _Factors(_weighted(other.phi, jnp.swapaxes(table, 0, 1)), self.phi)

    def joined(self, other: "_Factors") -> "_Factors":
        """The sum of both."""
        if self.phi is other.phi:
            return _Factors(self.parts + other.parts, self.phi)
        return _Factors(jnp.concatenate([self.parts, other.parts]), jnp.concatenate([self.phi, other.phi]))


def _weighted(phi: Array, parts: Array) -> Array:
    """``sum_k phi[k] parts[k]``."""
    return jnp.einsum("k,k...->...", phi, parts, precision=_EXACT)


class _Product(NamedTuple):
    """A value in factors times another value, entry by entry, which waits to be summed."""

    left: _Factors
    right: Any

    def summed(self, axes: Sequence[int]) -> Callable[[Array, Array], Array]:
        """The product of two arrays summed over some axes: a product of matrices."""
        kept = tuple(axis for axis in range(len(self.left.shape)) if axis not in axes)
        return lambda a, b: jax.lax.dot_general(a, b, ((axes, axes), (kept, kept)), precision=_EXACT)


def _bent(listing: Listing) -> set[Any]:
    """The values in which the result of an objective is not affine, as far as one can see."""
    moving = set(listing.y)
    for operation in listing.operations:
        if any(v in moving for v in operation.inputs if not isinstance(v, Literal)):
            moving.update(operation.outputs)
    bent = set()
    for operation in reversed(listing.operations):
        among = [(k, v) for k, v in enumerate(operation.inputs) if not isinstance(v, Literal) and v in moving]
        linear = len(among) == 1 and among[0][0] in _LINEAR.get(operation.name, ())
        if not (linear or operation.name in _SUMS) or not bent.isdisjoint(operation.outputs):
            bent.update(v for _, v in among)
    return bent


class _Walk:
    """One sample's way through the operations of an objective.

    `own` are the values that differ between samples; `formed` counts the numbers that a sample has for factors that are
    multiplied out.
    """

    def __init__(self, listing: Listing):
        self.listing, self.bent = listing, _bent(listing)
        self.values: dict[int, Any] = {}
        self.own: set[int] = set()
        self.formed = 0

    def __call__(self, constants: list[Array], x: PyTree, W: PyTree, phi: Array, xi: Array, eta: PyTree) -> Array:
        listing = self.listing
        self.values = dict(zip(listing.constants, constants, strict=True))
        self.values.update(listing.entered((*listing.x, *listing.sample), (x, xi, eta)))
        self.values.update((y, _Factors(w, phi)) for y, w in zip(listing.y, jax.tree.leaves(W), strict=True))
        self.own, self.formed = {*listing.y, *(v for v in listing.sample if v is not None)}, 0
        for operation in listing.operations:
            kept = self._in_factors(operation)
            results = operation(*map(self._plain, operation.inputs)) if kept is None else [kept]
            self.values.update(zip(operation.outputs, results, strict=True))
            if any(map(self._differs, operation.inputs)):
                self.own.update(operation.outputs)
        return self._plain(listing.result)

    def _value(self, place: Any) -> Any:
        return place.val if isinstance(place, Literal) else self.values[place]

    def _differs(self, place: Any) -> bool:
        return not isinstance(place, Literal) and place in self.own

    def _plain(self, place: Any) -> Any:
        """A value as an array."""
        value = self._value(place)
        if isinstance(value, _Factors | _Product):
            value = self.values[place] = self._multiplied_out(value)
        return value

    def _multiplied_out(self, value: Any) -> Array:
        if isinstance(value, _Product):
            return self._multiplied_out(value.left) * self._multiplied_out(value.right)
        return self._sum_of_parts(value, math.prod(value.shape)) if isinstance(value, _Factors) else value

    def _sum_of_parts(self, value: _Factors, formed: int | None = None) -> Array:
        """``sum_k phi[k] parts[k]``; the parts are a sample's own, unless it is said what is `formed`."""
        self.formed += value.parts.size if formed is None else formed
        return _weighted(value.phi, value.parts)

    def _in_factors(self, operation: Operation) -> Any:
        """What an operation gives where it need not know the numbers behind factors, else ``None``."""
        given, equation = [self._value(place) for place in operation.inputs], operation.equation
        held = [k for k, value in enumerate(given) if isinstance(value, _Factors | _Product)]
        kinds = {v.aval.dtype for v in (*equation.outvars, *(equation.invars[k] for k in held))}
        if not held or len(kinds) > 1:
            return None
        if any(isinstance(value, _Product) for value in given):
            return self._of_product(operation, given, held[0]) if len(held) == 1 else None
        if operation.name in _SUMS:
            return self._sum(operation, given)
        if operation.name == "square" or (operation.name == "integer_pow" and equation.params["y"] == 2):
            return _Product(given[0], given[0])
        if not set(held) <= set(_LINEAR.get(operation.name, ())):
            return None
        return self._two(operation, given) if len(held) == 2 else self._linear(operation, given, held[0])

    def _of_product(self, operation: Operation, given: list[Any], place: int) -> Any:
        """What an operation makes of a product: its sum, or a product with one side scaled alike for all samples."""
        if operation.name == "reduce_sum":
            return self._sum_of_product(operation, given[0])
        shared = not any(self._differs(v) for k, v in enumerate(operation.inputs) if k != place)
        if not shared or (operation.name == "div" and place) or operation.name not in ("mul", "div", "neg"):
            return None
        one = lambda part: operation(*given[:place], part, *given[place + 1 :])[0]
        return _Product(given[place].left.each(one), given[place].right)

    def _sum_of_product(self, operation: Operation, product: _Product) -> Any:
        """The sum of entries of a product."""
        summed = product.summed(operation.equation.params["axes"])
        if not isinstance(product.right, _Factors):
            return self._sum_of_parts(product.left.each(lambda part: summed(part, product.right)))
        bent = self.bent.intersection(operation.outputs)
        return None if bent else self._sum_of_parts(product.left.pairs(product.right, summed))

    def _two(self, operation: Operation, given: list[Any]) -> Any:
        """A product of two values in factors."""
        if operation.name == "mul":
            return _Product(*given) if given[0].shape == given[1].shape else None
        bent = self.bent.intersection(operation.outputs)
        return None if bent else self._sum_of_parts(given[0].pairs(given[1], lambda a, b: operation(a, b)[0]))

    def _linear(self, operation: Operation, given: list[Any], place: int) -> Any:
        """A linear operation on one value in factors; other operands may be a sample's own."""
        value, one = given[place], lambda part: operation(*given[:place], part, *given[place + 1 :])[0]
        if not any(self._differs(v) for k, v in enumerate(operation.inputs) if k != place):
            return value.each(one)
        if operation.name in ("mul", "div"):
            other = given[1 - place]
            if not jnp.shape(other):
                return _Factors(value.parts, operation(*(value.phi if k == place else other for k in (0, 1)))[0])
            return _Product(value, other) if operation.name == "mul" and other.shape == value.shape else None
        return self._sum_of_parts(value.each(one))

    def _sum(self, operation: Operation, given: list[Any]) -> Any:
        """A sum or a difference, of which what is not in factors must be the same for all samples."""
        terms, kind = [], operation.equation.outvars[0].aval
        for place, value in zip(operation.inputs, given, strict=True):
            if not isinstance(value, _Factors):
                if self._differs(place):
                    return None
                value = _Factors(jnp.broadcast_to(value, (1, *kind.shape)), jnp.ones(1, kind.dtype))
            terms.append(value)
        first, second = terms
        if first.shape != second.shape:
            return None
        return first.joined(second.each(jnp.negative) if operation.name == "sub" else second)


def values_in_factors(
    objective: Any, x: PyTree, W: PyTree, phi: Rows, xi: Array, eta: PyTree
) -> Float[Array, " n"] | None:
    """An objective at the policy, sample by sample; ``None`` where it is as well to form a ``y`` for each first.

    That is so too where an operation cannot be carried out one by one, as in a version of JAX that has changed it.
    """
    if isinstance(phi, OneHot) or getattr(objective, "listing", None) is None:
        return None
    listing, (rows, functions) = objective.listing, phi.shape
    kinds = [listing.kinds[y] for y in listing.y]
    size = sum(math.prod(kind.shape) for kind in kinds)
    if {leaf.dtype for leaf in (*kinds, *jax.tree.leaves(W))} != {phi.dtype}:
        return None
    if rows < 2 * functions:  # W itself is about as large as all y, and so is work on it
        return None
    if size < _FEWER * functions:  # a product with y leaves so many numbers at least
        return None
    walk = _Walk(listing)
    many = jax.vmap(partial(walk, objective.constants), in_axes=(None, None, 0, 0, 0))
    try:
        jax.eval_shape(many, x, W, phi, xi, eta)
    except Exception:  # whatever it is: formed policies need none of this, and the tests of this module fail
        return None
    return many(x, W, phi, xi, eta) if _FEWER * walk.formed <= size else None
