r"""``Collocation``: the lower level solved at a few nodes, and the policy interpolated between them.

The other classical choice next to the projection of the reduction: $y(\xi) = \sum_k L_k(\xi)\, y^\star(x, \xi_k)$ with
the Lagrange polynomials of Chebyshev nodes. The gradient is that of the interpolated objective, exactly.
"""

from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..basis import Basis, Categorical, Chebyshev, Components
from ..ground import whole
from ..lower import law_at, law_is_known
from ..problem import Box, Domain, Finite, Interval, Mixed
from .local_weights import LocalWeights, shaped
from .method import DirectRun
from .pointwise import Exact, NoiseRows, Pointwise, descend_exactly


class Collocation(Exact):
    """Exact lower-level solutions at Chebyshev nodes, interpolated; L-BFGS-B on top.

    **Arguments:**

    - `n`: nodes per dimension of an ``Interval`` or a ``Box``; each category of a ``Finite`` domain is a node.
    - `draws`: draws of ``problem.conditional`` per node, if it is used for conditional means.
    - `near`: if conditional means are unknown, those at a node are averages over samples near it.

    The solution has a basis, so ``cb.evaluate`` and ``cb.certify`` accept it.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, solver=cb.direct.Collocation(5))
    >>> solution.converged, solution.basis.basis
    (True, Chebyshev(5))
    """

    n: int = eqx.field(static=True, default=8)
    draws: int = eqx.field(static=True, default=4096)
    near: LocalWeights = LocalWeights()

    def __check_init__(self):
        whole("Collocation: n", self.n)
        whole("Collocation: draws", self.draws)

    def run(self, study, key, limits):
        domain, n = study.problem.domain, self.n
        basis = interpolating(domain, n)
        nodes = _nodes_of(domain, n)
        fitted = basis.fit(domain, jnp.asarray(nodes, study.dtype))
        values = np.asarray(fitted.at(nodes), float)
        known = law_is_known(study)
        rows = (
            NoiseRows.of_law(study, law_at(study, nodes, self.draws, key)) if known else self.near.rows_at(study, nodes)
        )
        there = np.asarray(fitted.at(np.asarray(study.upper.contexts().xi)), float)
        objective = Pointwise(study, rows, np.linalg.solve(values.T, there.T).T)
        x, result, detail, spent = descend_exactly(objective, limits)
        objective.solved(x)
        W = jax.tree.map(jnp.asarray, shaped(study, np.linalg.solve(values, objective.y)))
        means = "exact, or over draws" if known else f"over the {rows.each} samples nearest to each"
        choices = {"basis": f"{len(nodes)} nodes; conditional means {means}."}
        return DirectRun(x, result, "", spent, choices, detail, (fitted, W))


def interpolating(domain: Domain, n: int) -> Basis:
    """The interpolating functions: as many as nodes.

    **Arguments:**

    - `domain`: an ``Interval``, a ``Box``, a ``Finite`` domain or a ``Mixed`` one of these; `n`: nodes per dimension.

    **Example:**

    >>> cb.direct.interpolating(cb.Interval(0.0, 1.0), 8)
    Chebyshev(8)
    """
    if isinstance(domain, Mixed):
        return Components({name: interpolating(part, n) for name, part in domain.parts.items()})
    if isinstance(domain, Finite):
        return Categorical()
    if isinstance(domain, Interval | Box):
        return Chebyshev(n)
    raise ValueError(f"Collocation needs an Interval, a Box, a Finite domain or a Mixed one of these, got {domain!r}.")


def _nodes_of(domain: Domain, n: int) -> np.ndarray:
    """Zeros of the Chebyshev polynomial along each dimension; all values of a finite domain."""
    if isinstance(domain, Mixed):
        parts = [_nodes_of(part, n) for part in domain.parts.values()]
        return np.array(list(product(*parts)), float)
    if isinstance(domain, Finite):
        return np.asarray(domain.values)
    zeros = np.cos(np.pi * (2 * np.arange(n) + 1) / (2 * n))
    grid = np.array(list(product(zeros, repeat=domain.dimension)))
    return np.asarray(domain.place(grid))
