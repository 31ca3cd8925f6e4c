r"""Bases: families of functions of the context, and the feature map $\Phi(\xi) \in R^N$ they give on a domain.

A basis is what a user names, ``Chebyshev(5)``; fitted to a domain and to the contexts observed there it becomes a
``FeatureMap``, which can be called. In plain JSON, for saved solutions, it is its class and its fields.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float, Int, Shaped

from ..ground import Held, empty_table, module_of, on_host_or_compiled, put
from ..problem import Domain, enter
from .tables import OneHot, Rows

_FEWEST_PLACES = 64  # functions from which on places are kept rather than rows of zeros and a one
NUMBERS_AT_ONCE = 2**18  # of a table that is computed in NumPy: what is made on the way stays in the cache


# -- recipes


class Recipe(eqx.Module):
    """What a user names and a file can hold: a basis, or an index set. In JSON, its class and its fields."""


def plain_number(value: Any) -> Any:
    """Numbers of NumPy as Python's: what is static in a program, and what is saved, is plain."""
    return value.item() if isinstance(value, np.generic) else value


def _to_json(value: Any, typed: bool) -> Any:
    """Arrays with their dtype where `typed`; else as lists, and fields that are ``None`` or empty are left out."""
    if isinstance(value, Recipe | Domain):
        named = [(part.name, getattr(value, part.name)) for part in fields(value)]
        stated = lambda v: not callable(v) and (typed or not (v is None or (isinstance(v, tuple) and not v)))
        kept = {name: _to_json(v, typed) for name, v in named if stated(v)}
        return {"name": type(value).__name__, **kept}
    if isinstance(value, jax.Array | np.ndarray):  # a learned basis keeps what it learned
        return {"array": np.asarray(value).tolist(), "dtype": str(value.dtype)} if typed else np.asarray(value).tolist()
    return [_to_json(item, typed) for item in value] if isinstance(value, tuple | list) else plain_number(value)


def basis_to_json(basis: Recipe) -> dict[str, Any]:
    """The class and its fields; a user's function is left out."""
    return _to_json(basis, typed=True)


def domain_to_json(domain: Domain) -> dict[str, Any]:
    """The class and its fields, those that are not there left out."""
    return _to_json(domain, typed=False)


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return put(np.asarray(value["array"], value["dtype"])) if "array" in value else basis_from_json(value)
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def _kinds(kind: type) -> dict[str, type]:
    """A class and all that derive from it, by name."""
    return {kind.__name__: kind} | {name: part for sub in kind.__subclasses__() for name, part in _kinds(sub).items()}


def basis_from_json(entry: dict[str, Any]) -> Any:
    """The inverse of ``basis_to_json``, for the bases and index sets of this library alone."""
    known = _kinds(Recipe)
    if entry["name"] == "Features":
        raise ValueError("this solution uses Features, whose function is not saved. Pass load(..., basis=...).")
    if entry["name"] not in known:
        raise ValueError(f"the saved basis {entry['name']!r} is not part of this library; pass load(..., basis=...).")
    return known[entry["name"]](**{name: _from_json(value) for name, value in entry.items() if name != "name"})


# -- bases


class FeatureMap(eqx.Module):
    """A fitted basis: call it with contexts, batched over leading axes, to get features, NaN outside the domain.

    `transform`, when there is one, mixes the functions of `basis` into `size` new ones; `constant` holds the
    coefficients of the function 1 (or its best fit).
    """

    basis: "Basis"
    domain: Domain
    transform: Float[Held, "raw N"] | None
    constant: Float[Held, " N"]

    __hash__ = object.__hash__  # jax.jit takes functions that have one, and arrays do not

    def __repr__(self):
        return f"FeatureMap({self.basis!r} on {self.domain!r}, size={self.size})"

    @property
    def size(self) -> int:
        """``N``, the number of functions."""
        return len(self.constant)

    def __call__(self, xi: Any) -> Float[Held, "... N"]:
        return self.at(enter(self.domain, xi).values)

    def at(self, xi: Shaped[Held, "..."]) -> Float[Held, "... N"]:
        """The same at contexts as the library keeps them."""
        domain, shape = self.domain, self.domain.shape
        xi = xi if isinstance(xi, np.ndarray) and xi.dtype == self.constant.dtype else put(xi)
        if xi.shape[xi.ndim - len(shape) :] != shape or xi.ndim < len(shape):
            raise ValueError(f"contexts of {domain!r} must end in shape {shape}, got {xi.shape}.")
        return put(_features(self, xi))

    @property
    def one_hot(self) -> bool:
        """Whether one function alone is nonzero at each context, and there are so many that only its place is kept."""
        return self.transform is None and self.size >= _FEWEST_PLACES and type(self.basis).cell is not Basis.cell

    def rows(self, xi: Held) -> Rows:
        """The same for a list of contexts, as ``OneHot`` where each has one function alone."""
        return _places_of(self, xi) if self.one_hot else self.at(xi)


@on_host_or_compiled
def _features(fitted: FeatureMap, xi: Shaped[Held, "..."]) -> Float[Held, "... N"]:
    inside = fitted.domain.contains(xi)  # judged in the precision the contexts came in
    xi = _in_dtype_of(fitted, xi)
    if module_of(xi) is jnp:
        return jnp.where(inside[..., None], _mixed(fitted, xi), jnp.nan)
    rows, size = xi.reshape(inside.size, *fitted.domain.shape), fitted.size
    step = max(1, NUMBERS_AT_ONCE // (size if fitted.transform is None else len(fitted.transform)))
    table = empty_table(len(rows), size, fitted.constant.dtype)
    for start in range(0, len(rows), step):
        table[start : start + step] = _mixed(fitted, rows[start : start + step])
    if not inside.all():
        table[~inside.ravel()] = np.nan
    return table.reshape(*inside.shape, size)


def _mixed(fitted: FeatureMap, xi: Shaped[Held, "..."]) -> Float[Held, "... N"]:
    phi, dtype = fitted.basis.evaluate(fitted.domain, xi), fitted.constant.dtype
    phi = phi if phi.dtype == dtype else phi.astype(dtype)
    return phi if fitted.transform is None else phi @ fitted.transform


def _in_dtype_of(fitted: FeatureMap, xi: Shaped[Held, "..."]) -> Shaped[Held, "..."]:
    return xi.astype(fitted.constant.dtype) if jnp.issubdtype(xi.dtype, jnp.floating) else xi


@on_host_or_compiled
def _places_of(fitted: FeatureMap, xi: Shaped[Held, "n ..."]) -> OneHot:
    value = module_of(xi).where(fitted.domain.contains(xi), 1, np.nan).astype(fitted.constant.dtype)
    return OneHot(fitted.basis.cell(fitted.domain, _in_dtype_of(fitted, xi)), value, fitted.size)


@on_host_or_compiled
def _raw(basis: "Basis", domain: Domain, xi: Shaped[Held, "..."]) -> Float[Held, "... raw"]:
    return basis.evaluate(domain, xi)


class Basis(Recipe):
    """A recipe for functions of the context."""

    local: ClassVar[bool] = False  # functions live on cells and add up to 1: only halving the cells keeps the span

    @abstractmethod
    def evaluate(self, domain: Domain, xi: Shaped[Held, "..."]) -> Float[Held, "... raw"]:
        """The functions at the contexts, before any transform."""

    @abstractmethod
    def constant(self, domain: Domain) -> np.ndarray | None:
        """Coefficients of the function 1; ``None`` if they must be fitted."""

    def count(self, domain: Domain) -> int | None:
        """How many functions there are, without listing them; ``None`` if not known in advance."""
        return None

    def cell(self, domain: Domain, xi: Shaped[Held, "n ..."]) -> Int[Held, " n"]:
        """Which function is 1 at each context, for bases where only one is nonzero; most have several."""
        raise NotImplementedError

    def fit(self, domain: Domain, xi: ArrayLike, weights: Float[Held, " n"] | None = None) -> FeatureMap:
        """The feature map on a domain, given the observed contexts (and their weights)."""
        rows = put(xi if isinstance(xi, jax.Array) else np.asarray(xi))
        dtype = rows.dtype if jnp.issubdtype(rows.dtype, jnp.floating) else float
        constant = self.constant(domain)
        if constant is None:
            phi = np.asarray(_raw(self, domain, rows))
            if not np.isfinite(phi).all():
                raise ValueError(f"basis {self!r} returns NaN or infinity at observed contexts; check its function.")
            constant = np.linalg.lstsq(phi, np.ones(len(phi)), rcond=None)[0]  # whose function is nearest to 1
        return FeatureMap(self, domain, None, put(np.asarray(constant, dtype)))

    @property
    def learned(self) -> bool:
        """Whether the functions are known; if not, they must be learned from a problem first."""
        return True

    def with_parts(self, change: "Callable[[Basis], Basis]") -> "Basis":
        """The same recipe with a change applied to each basis it contains; most contain none."""
        return self

    def forgotten(self) -> "Basis":
        """The recipe as the user wrote it, without anything learned."""
        return self.with_parts(lambda part: part.forgotten())


def check_basis(basis: Any) -> None:
    """Raises if something is not a basis."""
    if not isinstance(basis, Basis):
        hint = " (a class: write the number of functions too)" if isinstance(basis, type) else ""
        raise TypeError(f"basis must be a basis such as cb.Chebyshev(5), got {basis!r}{hint}.")


def same_recipe(one: Basis, other: Basis) -> bool:
    """Whether two bases are the same recipe, whatever either has learned."""
    return basis_to_json(one.forgotten()) == basis_to_json(other.forgotten())
