r"""The reduction: with $y^\star(x, \xi) \approx W \Phi(\xi)$, contextual bilevel becomes ordinary bilevel in $(x, W)$.

$f_\Phi(x, W) = E f(x, W\Phi(\xi), \xi, \eta)$ and $g_\Phi$ likewise: both are expectations over the joint law of
context and noise, so joint samples are all that is needed, and any solver for stochastic bilevel problems can take it.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis.base import Basis, FeatureMap, combine
from ..basis.given import Categorical
from ..basis.whitening import Whitening, whiten
from ..keys import as_key
from ..problem.data import Data, Stream, levels
from ..problem.problem import Problem
from ..problem.study import check, working_dtype
from .batches import Batch, Source, Table, _source, contexts_of
from .solution import Solution


class Coordinates(eqx.Module):
    """The way back from whitened coefficients: ``W = transform @ Z + rest``.

    ``rest`` is the part of the start that the observed contexts do not see; it stays as it is, so that a cell without
    contexts keeps ``y0``.
    """

    transform: Float[Array, "N r"]
    rest: PyTree[Float[Array, "N ..."]]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Reduced:
    """An ordinary stochastic bilevel problem in ``(x, W)``; made by ``reduce``.

    An outside solver needs `upper`, `lower` (batch means, differentiable), the pools or `draw`, `problem.x0`, `W0`,
    and `lift` at the end.
    """

    problem: Problem
    basis: FeatureMap
    upper_source: Source
    lower_source: Source
    W0: PyTree[Float[Array, "N ..."]]
    whitening: Whitening | None
    coordinates: Coordinates | None = None

    def _mean(self, function: Any, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, ""]:
        y = combine(batch.features, W)
        values = jax.vmap(function, in_axes=(None, 0, 0, 0))(x, y, batch.xi, batch.eta)
        return jnp.mean(batch.weight * values).astype(batch.weight.dtype)

    def upper(self, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, ""]:
        """The batch mean of ``f(x, W Phi(xi), xi, eta)``."""
        return self._mean(self.problem.upper, x, W, batch)

    def lower(self, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, ""]:
        """The batch mean of ``g(x, W Phi(xi), xi, eta)``."""
        return self._mean(self.problem.lower, x, W, batch)

    @property
    def x0(self) -> PyTree[Array]:
        return self.problem.x0

    @property
    def upper_pool(self) -> Batch:
        """All the upper level's samples, with features: a pytree with a common leading axis."""
        return self.upper_source.pool()

    @property
    def lower_pool(self) -> Batch:
        """All the lower level's samples, with features: a pytree with a common leading axis."""
        return self.lower_source.pool()

    def draw(self, key: Array | int, size: int) -> tuple[Batch, Batch]:
        """Two independent random batches, one for each level."""
        key = as_key(key)
        above, below = jax.random.split(key)
        return self.upper_source.draw(above, size), self.lower_source.draw(below, size)

    def project(self, x: PyTree) -> PyTree:
        """The nearest point within the bounds on ``x``."""
        return jax.tree.map(jnp.clip, x, *self.problem.x_bounds)

    def lift(self, x: PyTree, W: PyTree, **told: Any) -> Solution:
        """The solution of the contextual problem that ``(x, W)`` stands for."""
        for name, tree, like in (("x", x, self.problem.x0), ("W", W, self.W0)):
            shapes = jax.tree.map(jnp.shape, tree)
            if shapes != jax.tree.map(jnp.shape, like):
                raise ValueError(f"lift: {name} must have the shapes {jax.tree.map(jnp.shape, like)}, got {shapes}.")
        if self.coordinates is not None:
            forth = self.coordinates.transform
            restore = lambda z, rest: jnp.tensordot(forth, z, axes=1) + rest
            W = jax.tree.map(restore, W, self.coordinates.rest)
        told = {"converged": False, "result": "Lifted from coefficients given by the caller; not checked.", **told}
        return Solution(x, W, self.basis, **told)

    def whitened(self) -> "Reduced":
        """The same problem in coordinates that make the observed features orthonormal, dependent ones cut."""
        if self.whitening is None or self.coordinates is not None:
            return self
        forth, back = self.whitening.transform, self.whitening.inverse
        Z0 = jax.tree.map(lambda w: jnp.tensordot(back, w, axes=1), self.W0)
        rest = jax.tree.map(lambda w, z: w - jnp.tensordot(forth, z, axes=1), self.W0, Z0)

        def rotate(source):
            pool = source.pool()
            return Table(eqx.tree_at(lambda b: b.features, pool, pool.features @ forth))

        lower = rotate(self.lower_source)
        upper = lower if self.upper_source is self.lower_source else rotate(self.upper_source)
        coordinates = Coordinates(forth, rest)
        return replace(self, upper_source=upper, lower_source=lower, W0=Z0, coordinates=coordinates)


def reduce(problem: Problem, basis: Basis, samples: Data) -> Reduced:
    """Reduces a contextual bilevel problem to an ordinary one, with features computed once.

    **Arguments:**

    - `problem`: what is to be solved.
    - `basis`: a basis such as ``Chebyshev(5)``.
    - `samples`: ``Samples``, ``Product``, ``Levels`` or ``Stream``.
    """
    check(problem, samples)
    return build(problem, basis, samples)


def build(problem: Problem, basis: Basis, samples: Data) -> Reduced:
    """``reduce``, for problem and samples that have been checked against each other already."""
    if not isinstance(basis, Basis):
        hint = " (a class: write the number of functions too)" if isinstance(basis, type) else ""
        raise TypeError(f"basis must be a basis such as cb.Chebyshev(5), got {basis!r}{hint}.")
    dtype = working_dtype(problem, samples)
    problem = problem.astype(dtype)
    basis = basis.learn(problem, samples)
    lower = levels(samples)[1]
    observed = contexts_of(lower)
    fitted = basis.fit(problem.domain, problem.domain.snap(observed.xi, dtype), observed.weights)
    if not isinstance(lower, Stream):
        _check_size(basis, fitted, np.asarray(observed.xi), "samples")
    return assemble(problem, fitted, samples)


def assemble(problem: Problem, fitted: FeatureMap, samples: Data) -> Reduced:
    """The reduced problem for a basis that is fitted already, perhaps to other samples."""
    dtype = working_dtype(problem, samples)
    problem = problem.astype(dtype)
    upper, lower = levels(samples)
    observed, whitening = contexts_of(lower), None
    if not isinstance(lower, Stream):
        whitening = whiten(fitted(problem.domain.snap(observed.xi, dtype)), observed.weights)
    source = _source(lower, fitted)
    W0 = jax.tree.map(lambda y: jnp.tensordot(fitted.constant.astype(dtype), y, axes=0), problem.y0)
    return Reduced(problem, fitted, source if upper is lower else _source(upper, fitted), source, W0, whitening)


def _check_size(basis: Basis, fitted: FeatureMap, contexts: np.ndarray, where: str) -> None:
    """More functions than distinct contexts cannot be told apart; near that, they fit noise."""
    distinct = len(np.unique(contexts, axis=0))
    if isinstance(basis, Categorical):
        return  # its size is the domain's; values never seen keep y0
    count = len(fitted.constant) if fitted.transform is None else len(fitted.transform)
    if count > distinct:
        raise ValueError(
            f"basis {basis!r} has {count} functions, but {where} hold only {distinct} distinct contexts. Take a "
            f"smaller n, or more contexts."
        )
    if count > 1 and 2 * count > distinct:
        warnings.warn(
            f"basis {basis!r} has {count} functions for {distinct} distinct contexts: expect overfitting between them. "
            "Take n so that there are several contexts a function.",
            stacklevel=4,
        )
