r"""``LocalWeights``: conditional means as weighted means over the samples nearby (predict, then optimise).

$$y^\star(x, \xi) \approx \arg\min_y \sum_j w_j(\xi)\, g(x, y, \xi, \eta_j).$$

Reference: D. Bertsimas and N. Kallus, From predictive to prescriptive analytics, Management Science 66, 2020.
"""

from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Int

from ..ground import as_rows, double, shaped_like, whole
from ..lower import law_at
from ..study import Study
from .method import DirectRun
from .pointwise import Exact, NoiseRows, Pointwise, descend_exactly

_Weights = tuple[Int[np.ndarray, "k r"], Float[np.ndarray, "k r"]]


class LocalWeights(Exact):
    """The lower level at each sample's context, over weighted samples nearby; joint samples are enough.

    **Arguments:**

    - `kind`: ``"neighbours"`` weights the nearest equally; ``"kernel"`` takes twice as many and lets weights fall to
      zero with the distance (Epanechnikov); ``"forest"`` weights by how often a random forest that predicts ``eta``
      puts samples into one leaf (needs scikit-learn).
    - `neighbours`: how many; by default the square root of the number of samples. In a forest, the largest leaf is
      about this large.
    - `trees`: the number of trees in the forest.

    If conditional means are known exactly (no noise in ``g``, ``Product`` data), they are used instead.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.direct.LocalWeights().solve(case.problem, case.train)
    >>> solution.converged, solution.policy(case.test.xi[:5]).shape
    (True, (5, 1))
    """

    kind: Literal["neighbours", "kernel", "forest"] = eqx.field(static=True, default="neighbours")
    neighbours: int | None = eqx.field(static=True, default=None)
    trees: int = eqx.field(static=True, default=100)

    def __check_init__(self):
        if self.kind not in ("neighbours", "kernel", "forest"):
            raise ValueError(f'LocalWeights: kind must be "neighbours", "kernel" or "forest", got {self.kind!r}.')
        if self.neighbours is not None:
            whole("LocalWeights: neighbours", self.neighbours)
        whole("LocalWeights: trees", self.trees)

    def rows_at(self, study: Study, xi: Any) -> NoiseRows:
        """Each context with the samples near it."""
        if not study.noisy:
            return NoiseRows.of_law(study, law_at(study, xi))
        level: Any = study.lower
        domain: Any = study.problem.domain
        seen, asked = (np.asarray(domain.embedded(np.asarray(v))) for v in (level.xi, xi))
        count = min(len(seen), self.neighbours or int(np.ceil(len(seen) ** 0.5)))
        if self.kind == "forest":
            index, weights = self._leaves(seen, as_rows(level.eta), asked, count)
        else:
            index, weights = _nearest(seen, asked, count, self.kind == "kernel")
        shares = level.shares()
        return NoiseRows.of(xi, level.eta, study.dtype, weights * shares[index], index)

    def _leaves(self, seen: np.ndarray, targets: np.ndarray, asked: np.ndarray, count: int) -> _Weights:
        """Weights of a forest, of each context the largest, four times as many as neighbours."""
        try:
            from sklearn.ensemble import RandomForestRegressor
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError('LocalWeights("forest") needs scikit-learn: pip install scikit-learn.') from error
        from scipy.sparse import csr_matrix

        leaf = max(1, count // 2)  # leaves of so many at least are below twice that, about
        forest = RandomForestRegressor(self.trees, min_samples_leaf=leaf, random_state=0)
        scaled = targets / np.maximum(targets.std(axis=0), np.finfo(float).tiny)
        forest.fit(seen, scaled[:, 0] if scaled.shape[1] == 1 else scaled)
        own, other = (forest.apply(points) for points in (seen, asked))
        ends = np.cumsum(own.max(axis=0) + 1)  # the leaves of all trees, one after the other
        begins, each = ends - own.max(axis=0) - 1, np.ones(self.trees)
        one_hot = lambda leaves: csr_matrix(
            (np.tile(each, len(leaves)), (leaves + begins).ravel(), self.trees * np.arange(len(leaves) + 1)),
            (len(leaves), ends[-1]),
        )
        held = one_hot(own)
        inverse = 1 / np.maximum(np.asarray(held.sum(axis=0)).ravel(), 1)
        table = (one_hot(other).multiply(inverse).tocsr() @ held.T).tocsr()
        kept = min(4 * count, len(seen))
        index, weights = np.zeros((len(asked), kept), int), np.zeros((len(asked), kept))
        for row in range(len(asked)):
            part = slice(table.indptr[row], table.indptr[row + 1])
            largest = np.argsort(-table.data[part], kind="stable")[:kept]
            index[row, : len(largest)] = table.indices[part][largest]
            weights[row, : len(largest)] = table.data[part][largest]
        return index, weights

    def run(self, study, key, limits):
        return run_at_contexts(study, limits, lambda xi: self.rows_at(study, xi))


def _nearest(seen: np.ndarray, asked: np.ndarray, count: int, kernel: bool) -> _Weights:
    """The nearest samples; with a kernel twice as many, the last of weight zero."""
    from scipy.spatial import KDTree  # takes long to import

    count = min(len(seen), 2 * count) if kernel else count
    distance, index = KDTree(seen).query(asked, k=count)
    distance, index = distance.reshape(len(asked), count), index.reshape(len(asked), count)
    if not kernel:
        return index, np.ones(index.shape)
    weights = 1 - (distance / np.maximum(distance[:, -1:], np.finfo(float).tiny)) ** 2
    return index, np.where(weights.sum(axis=1, keepdims=True) > 0, weights, 1.0)


def run_at_contexts(study: Study, limits: Any, rows_at: Any) -> DirectRun:
    """The lower level at every context of the upper one, each once; `rows_at` gives contexts their rows of noise."""
    xi = np.asarray(study.upper.contexts().xi)
    nodes, place = np.unique(xi, axis=0, return_inverse=True)
    objective = Pointwise(study, rows_at(nodes), place.ravel())
    x, result, detail, spent = descend_exactly(objective, limits)

    def follow(asked: Any) -> Any:
        with double():  # the caller may have switched back
            at = Pointwise(study, rows_at(np.asarray(asked)), np.arange(len(asked)))
            y = at.solved(x)[1].point
        return shaped(study, y)

    return DirectRun(
        x, result, follow, spent, {"contexts": f"the lower level is solved at {len(nodes)} contexts."}, detail
    )


def shaped(study: Study, y: Any) -> Any:
    """A row for each context as the pytree ``y``."""
    like = jax.tree.map(lambda leaf: np.empty((1, *np.shape(leaf))), study.problem.y0)
    return shaped_like(like, y, lead=1)
