"""Functions of contexts of several kinds: each part of a ``Mixed`` domain has its own, multiplied over an index set."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..host import module_of, on_host_or_compiled
from ..problem import Domain, Finite, Mixed, Periodic
from ..programs import Held, put
from .axes import Axes, Frequencies, Values
from .base import Basis
from .categorical import Categorical
from .families import Chebyshev, Fourier, Partition, ProductBasis, products
from .index_sets import IndexSet, Listed, Tensor
from .whitening import Orthonormal


def _local(basis: Basis) -> bool:
    """Whether functions add up to 1, rather than beginning with it."""
    return isinstance(basis, Categorical) or (isinstance(basis, ProductBasis) and basis.local)


def _named_parts(parts: Any) -> tuple[tuple[str, Any], ...]:
    listed = list(parts.items()) if isinstance(parts, Mapping) else parts
    if not isinstance(listed, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in listed
    ):
        raise TypeError(f"Components takes a dict of bases by name, such as {{'hour': Fourier(5)}}, got {parts!r}.")
    return tuple((str(name), basis) for name, basis in listed)


class Components(Basis):
    """A basis for each part of a ``Mixed`` domain, and products of these over an index set.

    ``Components({"weather": Chebyshev(8), "hour": Fourier(5), "day": Categorical()}, coupling=Additive())``; parts may
    be keywords too. Each part's functions begin with the constant; of categories, cells and splines what follows are
    the others less their means over the observed contexts. So with any coupling a category never seen has no effect:
    the policy there is the mean over the categories that were.

    **Arguments:**

    - `parts`: a basis for each part by name: ``Chebyshev(n)`` and its like, or ``Categorical()``.
    - `coupling`: which products there are: ``Tensor()``, all; ``Additive()``, none; ``Interactions(2)``, of two parts;
      ``TotalDegree()``, ``HyperbolicCross()``, with sines and cosines counted by frequency and categories as degree 1;
      ``Listed(members)``.
    - `means`: found by fitting.
    """

    parts: tuple[tuple[str, Any], ...]
    coupling: IndexSet = eqx.field(static=True)
    means: tuple[Float[Held, " n"] | None, ...] | None

    def __init__(self, parts: Any = (), coupling: Any = Tensor(), means: Any = None, **named: Any):  # noqa: B008
        self.parts = (*_named_parts(parts), *_named_parts(named))
        self.coupling, self.means = coupling, None if means is None else tuple(means)

    def __check_init__(self):
        if not isinstance(self.coupling, IndexSet):
            raise TypeError(
                f"Components: coupling must be Tensor(), Additive(), Interactions(order), TotalDegree(), "
                f"HyperbolicCross() or Listed(members), got {self.coupling!r}."
            )
        for name, basis in self.parts:
            if not isinstance(basis, ProductBasis | Categorical):
                raise TypeError(
                    f"Components: {name} must be Categorical() or a family such as Chebyshev(8) or Fourier(5), got "
                    f"{basis!r}. Your own functions of all parts: Features(function, n)."
                )
        if not self.parts or len(dict(self.parts)) < len(self.parts):
            raise ValueError("Components needs a basis for each part of the domain, each part named once.")

    def _by_part(self, domain: Domain) -> list[tuple[Basis, Domain, Any]]:
        """The parts in the order of the domain, and what was found by fitting each."""
        if not isinstance(domain, Mixed) or set(domain.names) != set(dict(self.parts)):
            named = list(domain.names) if isinstance(domain, Mixed) else repr(domain)
            raise ValueError(
                f"Components has bases for {list(dict(self.parts))}, but the domain is of {named}: give one for each "
                "part of a Mixed domain, under its name."
            )
        places = [list(dict(self.parts)).index(name) for name in domain.names]
        found = [(self.parts[k][1], part) for k, part in zip(places, domain.components, strict=True)]
        for name, (basis, part) in zip(domain.names, found, strict=True):
            if isinstance(basis, Categorical) != isinstance(part, Finite) and (
                isinstance(basis, Categorical) or getattr(part, "labels", None) is not None
            ):
                remedy = "Chebyshev(8)" if isinstance(basis, Categorical) else "Categorical()"
                raise TypeError(
                    f"Components: {name} lives on {part!r}, for which {basis!r} is no basis: take {remedy}."
                )
        means = self.means or (None,) * len(places)
        return [(*pair, means[k]) for k, pair in zip(places, found, strict=True)]

    def degrees(self, domain: Domain) -> list[np.ndarray]:
        """The degree of each function of each part."""
        return [_degrees(basis, part) for basis, part, _ in self._by_part(domain)]

    def evaluate(self, domain: Any, xi):
        columns = [
            _from_one(basis, part, xi[..., j], means) for j, (basis, part, means) in enumerate(self._by_part(domain))
        ]
        starts = np.cumsum([0, *(column.shape[-1] for column in columns[:-1])])
        values = module_of(xi).concatenate(columns, axis=-1)
        return products(values, self.coupling.coupled(self.degrees(domain)), starts, True)

    def count(self, domain):
        return self.coupling.count_coupled(self.degrees(domain))

    def constant(self, domain):
        return (self.coupling.coupled(self.degrees(domain)).sum(axis=1) == 0).astype(float)

    def fit(self, domain, xi, weights=None):
        bare = self.forgotten()
        xi = put(xi if isinstance(xi, jax.Array) else np.asarray(xi))
        found, means = bare._by_part(domain), {}
        names: Any = getattr(domain, "names", ())
        for j, (name, (basis, part, _)) in enumerate(zip(names, found, strict=True)):
            means[name] = np.asarray(_means(basis, part, xi, j, weights)) if _local(basis) else None
        fitted = Components(bare.parts, bare.coupling, [means[name] for name, _ in bare.parts])
        return Basis.fit(fitted, domain, xi, weights)

    def with_parts(self, change):
        return Components([(name, change(basis)) for name, basis in self.parts], self.coupling, self.means)

    def forgotten(self):
        return Components(self.parts, self.coupling)

    def __repr__(self):
        coupling = "" if isinstance(self.coupling, Tensor) else f", coupling={self.coupling!r}"
        return f"Components({{{', '.join(f'{name!r}: {basis!r}' for name, basis in self.parts)}}}{coupling})"


def _degrees(basis: Basis, part: Domain) -> np.ndarray:
    if _local(basis):
        count = len(part.values) if isinstance(part, Finite) else basis.n  # pyright: ignore
        return np.minimum(np.arange(count), 1)
    k = np.arange(basis.n)  # pyright: ignore[reportAttributeAccessIssue]
    return (k + 1) // 2 if isinstance(basis, Fourier) else k


def _from_one(basis: Basis, part: Domain, xi: Held, means: Any) -> Float[Held, "... n"]:
    """The functions of one part, the first of them 1.

    Of those that add up to 1, the others less their means; where none of those that were seen is at work, all are zero.
    """
    values = basis.evaluate(part, xi)
    if not _local(basis):
        return values
    xp, count = module_of(values), values.shape[-1]
    means = xp.asarray(np.full(count, 1 / count) if means is None else means, values.dtype)
    seen = (means > 0).astype(values.dtype)
    contrasts = values * seen - (values @ seen)[..., None] * means
    return xp.concatenate([xp.ones_like(values[..., :1]), contrasts[..., 1:]], axis=-1)


@on_host_or_compiled
def _means(basis: Basis, part: Domain, xi: Held, j: int, weights: Any) -> Float[Held, " n"]:
    """The mean of each function of a part, whose contexts are column `j`."""
    values = basis.evaluate(part, xi[:, j])
    return values.mean(axis=0) if weights is None else weights.astype(values.dtype) @ values / weights.sum()


def by_component(basis: Basis, domain: Domain) -> Basis:
    """A basis as it is meant on a domain: on a ``Mixed`` one, a single family is taken for each part it suits.

    Periodic parts have sines and cosines then, categories contrasts, each part as many functions as the family.
    """
    if not isinstance(domain, Mixed) or isinstance(basis, Components):
        return basis
    if not isinstance(basis, ProductBasis):
        return basis.with_parts(lambda part: by_component(part, domain))
    parts = {name: _family_on(basis, part) for name, part in domain.parts.items()}
    return Components(parts, basis.index)


def _family_on(family: ProductBasis, part: Domain) -> Basis:
    if isinstance(part, Finite):
        return Categorical()
    if isinstance(part, Periodic) and not isinstance(family, Partition):
        return Fourier(family.n)
    return replace(family, index=Tensor())


def basis_of(members: np.ndarray, domain: Domain) -> Basis:
    """The functions natural to a domain with these multi-indices (``Axes``), whitened."""
    axes = Axes.of(domain)
    if isinstance(domain, Mixed):
        made = zip(domain.names, axes.each, members.max(axis=0), strict=True)
        parts = {name: _of_axis(axis, int(top) + 1) for name, axis, top in made}
        return Orthonormal(Components(parts, Listed(members.tolist())))
    if axes.nested:
        return Orthonormal(_of_axis(axes.each[0], int(members.max()) + 1))
    return Orthonormal(Chebyshev(int(members.max()) + 1, index=Listed(members.tolist())))


def _of_axis(axis: Any, count: int) -> Basis:
    if isinstance(axis, Values):
        return Categorical()
    return Fourier(count) if isinstance(axis, Frequencies) else Chebyshev(count)
