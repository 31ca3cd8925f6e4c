"""Bases made of others: products of those of each part of a ``Mixed`` domain, unions, and whitened ones."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..ground import Held, module_of, on_host_or_compiled, positive, put
from ..problem import Domain, Finite, Interval, Mixed
from .axes import Axes, Axis
from .base import Basis, FeatureMap, plain_number
from .families import Categorical, Chebyshev, Features, Fourier, Partition, ProductBasis, products
from .index_sets import IndexSet, Listed, Tensor, check_index
from .piecewise import Piecewise
from .tables import combine, dense, whiten


def _named_parts(parts: Any) -> tuple[tuple[str, Any], ...]:
    listed = list(parts.items()) if isinstance(parts, Mapping) else parts
    if not isinstance(listed, list | tuple) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in listed
    ):
        raise TypeError(f"Components takes a dict of bases by name, such as {{'hour': Fourier(5)}}, got {parts!r}.")
    return tuple((str(name), basis) for name, basis in listed)


class Components(Basis):
    """A basis for each part of a ``Mixed`` domain, and their products over an index set.

    ``Components({"weather": Chebyshev(8), "hour": Fourier(5), "day": Categorical()}, coupling=Additive())``; parts may
    be keywords too. Each part's functions begin with the constant. For categories, cells and splines, the remaining
    functions are centred on the observed contexts. So with any coupling a category never observed has no effect: the
    policy there is the mean over the observed categories.

    **Arguments:**

    - `parts`: a basis for each part by name: a family such as ``Chebyshev(n)``, or ``Categorical()``; or pass them as
      keywords, `named`.
    - `coupling`: which products to keep: ``Tensor()``, all; ``Additive()``, none; ``Interactions(2)``, of two parts;
      ``TotalDegree()``, ``HyperbolicCross()``, with sines and cosines counted by frequency and categories as degree 1;
      ``Listed(members)``.
    - `means`: filled in by fitting.

    **Example:**

    >>> parts = {"weather": cb.Chebyshev(3), "day": cb.Categorical()}
    >>> domain = cb.Mixed(weather=cb.Interval(0, 1), day=cb.Finite(["mon", "sun"]))
    >>> samples = cb.Samples({"weather": np.linspace(0, 1, 20), "day": np.tile(["mon", "sun"], 10)}, np.zeros(20))
    >>> case = cb.Problem(lambda x, y, xi, eta: y**2, lambda x, y, xi, eta: (y - x) ** 2, 0.0, 0.0, domain)
    >>> cb.reduce(case, cb.Components(parts, coupling=cb.Additive()), samples).W0.shape  # 1 + 2 + 1
    (4,)
    """

    parts: tuple[tuple[str, Any], ...]
    coupling: IndexSet = eqx.field(static=True)
    means: tuple[Float[Held, " n"] | None, ...] | None

    def __init__(self, parts: Any = (), coupling: Any = Tensor(), means: Any = None, **named: Any):  # noqa: B008
        self.parts = (*_named_parts(parts), *_named_parts(named))
        self.coupling, self.means = coupling, None if means is None else tuple(means)

    def __check_init__(self):
        check_index("Components: coupling", self.coupling)
        for name, basis in self.parts:
            if not isinstance(basis.basis if isinstance(basis, Piecewise) else basis, ProductBasis | Categorical):
                raise TypeError(
                    f"Components: {name} must be Categorical() or a family such as Chebyshev(8) or Fourier(5), got "
                    f"{basis!r}. For your own functions of all parts use Features(function, n)."
                )
        if not self.parts or len(dict(self.parts)) < len(self.parts):
            raise ValueError("Components needs exactly one basis for each part of the domain.")

    def _by_part(self, domain: Domain) -> list[tuple[Any, Domain, Any]]:
        """The parts in the order of the domain: basis, domain, and means found by fitting."""
        given = dict(self.parts)
        if not isinstance(domain, Mixed) or set(domain.names) != set(given):
            named = list(domain.names) if isinstance(domain, Mixed) else repr(domain)
            raise ValueError(
                f"Components has bases for {list(given)}, but the domain consists of {named}. Give one for each part "
                "of a Mixed domain, under its name."
            )
        for name, part in domain.parts.items():
            categorical = isinstance(given[name], Categorical)
            if categorical != isinstance(part, Finite) and (categorical or getattr(part, "labels", None) is not None):
                remedy = "Chebyshev(8)" if categorical else "Categorical()"
                raise TypeError(
                    f"Components: {given[name]!r} is not a basis for {name}, which lives on {part!r}. Use {remedy}."
                )
        means = dict(zip(given, self.means or (None,) * len(given), strict=True))
        return [(given[name], part, means[name]) for name, part in domain.parts.items()]

    def degrees(self, domain: Domain) -> list[np.ndarray]:
        """The degree of each function of each part."""
        return [basis.degree_of(np.arange(basis.count(part))) for basis, part, _ in self._by_part(domain)]

    def evaluate(self, domain: Any, xi):
        parts, degrees = enumerate(self._by_part(domain)), self.degrees(domain)
        columns = [_from_one(basis, part, xi[..., j], means) for j, (basis, part, means) in parts]
        starts = np.cumsum([0, *map(len, degrees[:-1])])
        return products(module_of(xi).concatenate(columns, axis=-1), self.coupling.coupled(degrees), starts, True)

    def count(self, domain):
        return self.coupling.size(self.degrees(domain))

    def constant(self, domain):
        return (self.coupling.coupled(self.degrees(domain)).sum(axis=1) == 0).astype(float)

    def fit(self, domain: Any, xi, weights=None):
        xi = put(xi if isinstance(xi, jax.Array) else np.asarray(xi))
        mean = lambda j, basis, part: np.asarray(_means(basis, part, xi, j, weights)) if basis.local else None
        means = {domain.names[j]: mean(j, basis, part) for j, (basis, part, _) in enumerate(self._by_part(domain))}
        fitted = Components(self.parts, self.coupling, [means[name] for name, _ in self.parts])
        return Basis.fit(fitted, domain, xi, weights)

    def with_parts(self, change):
        return Components([(name, change(basis)) for name, basis in self.parts], self.coupling, self.means)

    def forgotten(self):
        return Components(self.parts, self.coupling)

    def __repr__(self):
        coupling = "" if isinstance(self.coupling, Tensor) else f", coupling={self.coupling!r}"
        return f"Components({{{', '.join(f'{name!r}: {basis!r}' for name, basis in self.parts)}}}{coupling})"


def _from_one(basis: Basis, part: Domain, xi: Held, means: Any) -> Float[Held, "... n"]:
    """The functions of one part, the first of them 1.

    Of those that add up to 1, the others less their means; where none of those that were seen is at work, all are zero.
    """
    values = basis.evaluate(part, xi)
    xp, count = module_of(values), values.shape[-1]
    if not basis.local:
        first = xp.ones_like(values[..., :1])  # with those of the other pieces, it has the span of all
        return xp.concatenate([first, values[..., 1:]], axis=-1) if isinstance(basis, Piecewise) else values
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
    """A basis adapted to a domain: on a ``Mixed`` domain, a single family is used for each part it suits.

    Periodic parts then get sines and cosines, categories contrasts; each part has as many functions as the family.
    Where a domain, or a part of it, has breaks, each piece has a copy of the basis.
    """
    if not isinstance(domain, Mixed):
        return _cut(basis, domain.breaks) if isinstance(domain, Interval) and domain.breaks else basis
    if isinstance(basis, Components):
        on = lambda name, part: by_component(part, domain.parts[name]) if name in domain.names else part
        return Components([(name, on(name, part)) for name, part in basis.parts], basis.coupling, basis.means)
    if not isinstance(basis, ProductBasis):
        return basis.with_parts(lambda part: by_component(part, domain))

    own = lambda axis: axis.family is Chebyshev or (axis.family is Fourier and isinstance(basis, Partition))
    family = lambda axis: replace(basis, index=Tensor()) if own(axis) else axis.basis(basis.n)
    parts = {name: by_component(family(Axis.of(part)), part) for name, part in domain.parts.items()}
    return Components(parts, basis.index)


def _cut(basis: Basis, breaks: tuple[float, ...]) -> Basis:
    """A basis with a copy on each piece, the pieces that it has included; what is learned is cut where it is."""
    if isinstance(basis, Piecewise):
        return Piecewise(basis.basis, sorted({*breaks, *basis.breaks}))
    if isinstance(basis, ProductBasis | Features):
        return Piecewise(basis, breaks)
    return basis.with_parts(lambda part: _cut(part, breaks))


def basis_of(members: np.ndarray, domain: Domain) -> Basis:
    """The functions natural to a domain with these multi-indices (``Axes``), whitened."""
    axes = Axes.of(domain)
    if isinstance(domain, Mixed):
        each = zip(domain.names, axes.each, members.max(axis=0), strict=True)
        parts = {name: axis.basis(int(top) + 1) for name, axis, top in each}
        return Orthonormal(Components(parts, Listed(members.tolist())))
    if axes.nested:
        return Orthonormal(axes.each[0].basis(int(members.max()) + 1))
    return Orthonormal(Chebyshev(int(members.max()) + 1, index=Listed(members.tolist())))


def _listed(parts: Any) -> tuple[Any, ...]:
    return tuple(parts) if isinstance(parts, Iterable) and not hasattr(parts, "dtype") else (parts,)


class Union(Basis):
    """The functions of several bases together; whiten it (``Orthonormal``) if they overlap.

    **Arguments:**

    - `parts`: a list of bases.

    **Example:**

    >>> basis = cb.Union([cb.Chebyshev(4), cb.Partition(2)])
    >>> basis.fit(cb.Interval(0.0, 1.0), np.linspace(0.0, 1.0, 50)).size
    6
    """

    parts: tuple[Basis, ...] = eqx.field(converter=_listed)

    def __check_init__(self):
        if not self.parts or not all(isinstance(part, Basis) for part in self.parts):
            raise TypeError(f"Union takes bases, such as Union([Chebyshev(5), Partition(4)]), got {self.parts!r}.")

    def evaluate(self, domain, xi):
        return module_of(xi).concatenate([part.evaluate(domain, xi) for part in self.parts], axis=-1)

    def count(self, domain):
        counts = [part.count(domain) for part in self.parts]
        return None if None in counts else sum(counts)

    def constant(self, domain):
        return None

    def with_parts(self, change):
        return Union([change(part) for part in self.parts])

    @property
    def learned(self):
        return all(part.learned for part in self.parts)

    def __repr__(self):
        return f"Union([{', '.join(map(repr, self.parts))}])"


class Orthonormal(Basis):
    r"""The span of another basis, whitened against the observed contexts, so that $m_\Phi = 1$ by construction.

    **Arguments:**

    - `basis`: the basis to whiten.
    - `tolerance`: singular values below this share of the largest count as zero; by default set by the precision.

    **Example:**

    >>> grid = np.linspace(0.0, 1.0, 50) ** 2
    >>> basis = cb.Orthonormal(cb.Chebyshev(4)).fit(cb.Interval(0.0, 1.0), grid)
    >>> values = np.asarray(basis(grid))
    >>> bool(np.allclose(values.T @ values / 50, np.eye(4), atol=1e-4))
    True
    """

    basis: Basis
    tolerance: float | None = eqx.field(static=True, converter=plain_number, default=None)

    def __check_init__(self):
        if not isinstance(self.basis, Basis):
            raise TypeError(f"Orthonormal takes a basis, such as Orthonormal(Chebyshev(5)), got {self.basis!r}.")
        if self.tolerance is not None and positive("Orthonormal: tolerance", self.tolerance) >= 1:
            raise ValueError(
                f"Orthonormal: tolerance, relative to the largest singular value, must be < 1, got {self.tolerance!r}."
            )

    def evaluate(self, domain, xi):
        return self.basis.evaluate(domain, xi)

    def count(self, domain):
        return self.basis.count(domain)

    def constant(self, domain):
        return self.basis.constant(domain)

    def with_parts(self, change):
        return Orthonormal(change(self.basis), self.tolerance)

    @property
    def learned(self):
        return self.basis.learned

    def fit(self, domain, xi, weights=None):
        plain = self.basis.fit(domain, xi, weights)
        factors = whiten(plain.at(xi), weights, self.tolerance)
        turned = dense(factors.transform)
        transform = turned if plain.transform is None else combine(plain.transform, turned)
        constant = combine(factors.inverse, np.asarray(plain.constant, factors.inverse.dtype))
        own = self if plain.basis is self.basis else Orthonormal(plain.basis, self.tolerance)
        return FeatureMap(own, domain, transform, constant)

    def __repr__(self):
        return f"Orthonormal({self.basis!r})"
