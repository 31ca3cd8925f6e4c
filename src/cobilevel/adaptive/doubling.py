r"""How many functions of the context, where ``y`` is so large that Hessians come as products: doubled until that makes
no difference.

Where samples show the lower level without noise, the objective and its gradient say so: a change of the gradient by
$\Delta$ moves the minimum by $\tfrac12 \Delta^T H^{-1} \Delta$ in units of the objective. Where they do not, samples
held out do: more functions are worth it while they lower the lower objective there, or that of the adjoint,
$\tfrac12 v^T \partial_{22} g\, v - v^T \partial_2 f$, clearly beyond its noise.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis import Axes, basis_of, dense
from ..covariates import CLEARLY, FITTED, MOST_FUNCTIONS, SETTLED
from ..derivatives import Expansions, oracles
from ..ground import generator, put
from ..lower import Point, solve_at, units_by_products
from ..reduction import Bilevel, Reduced, Table, batch_of, reduce_study
from ..study import Study

_FIRST = (7, 3, 1)  # levels to begin with, if they are few functions and the samples support them
_CLOSE = SETTLED / 10  # of coefficients and adjoint: what they may be off


@dataclass(frozen=True)
class Fit:
    """The reduced problem solved at one ``x``; `held`: rows of both losses on samples held out, if there are any."""

    reduced: Reduced
    at: Expansions
    point: Point
    held: Float[np.ndarray, "2 m"] | None

    def tables(self, xi: Any) -> tuple[np.ndarray, np.ndarray]:
        """Policy and adjoint at contexts."""
        phi = np.asarray(self.reduced.features(xi), float)
        return phi @ self.point.W, phi @ self.point.adjoint


@eqx.filter_jit
def _losses(reduced: Bilevel, x: PyTree, W: PyTree, V: PyTree) -> tuple[Array, Array]:
    return oracles.losses(reduced, x, W, V, reduced.lower_pool)


class Doubling:
    """Fits at one ``x`` with the functions up to a level; what they cost is added to `spent`."""

    def __init__(self, study: Study, x: Float[np.ndarray, " dx"], spent: Counter, key: Array):
        self.study, self.x, self.spent, self.axes = study, x, spent, Axes.of(study.problem.domain)
        self.fitted, self.held, self.scales = study, None, None
        lower: Any = study.lower
        supported = MOST_FUNCTIONS if lower.law is not None else lower.contexts().supported(study.noisy)
        self.most = max(1, min(supported, MOST_FUNCTIONS ** len(self.axes)))
        if study.noisy:
            order = generator(key).permutation(len(lower))
            cut = max(1, int(FITTED * len(lower)))
            self.fitted = study.on(lower.rows(order[:cut]), None if study.shared else study.upper)
            self.held = lower.rows(order[cut:])

    def count(self, level: int) -> int:
        return len(self.axes.up_to(level))

    def fit(self, level: int, near: Fit | Callable | None = None) -> Fit:
        """The reduced problem with the functions up to a level; from another fit, or a policy, where that is `near`."""
        domain, dtype = self.study.problem.domain, self.study.dtype
        reduced = reduce_study(self.fitted, basis_of(self.axes.up_to(level), domain)).whitened()
        at, pool = Expansions(reduced.ordinary()), reduced.lower_source.contexts_pool()
        at.spent, start, adjoint = self.spent, at.table(reduced.W0), None
        if near is not None:  # features are orthonormal: a policy's coefficients are its means with them
            known = near.tables(pool.xi) if isinstance(near, Fit) else (at.table(near(pool.xi)), None)
            share = np.asarray(dense(pool.features), float).T * (np.asarray(pool.weight, float) / len(pool))
            start, adjoint = (None if table is None else share @ table for table in known)
        point = solve_at(at, self.x, start, 0.0, _CLOSE, adjoint=adjoint)
        if self.held is None:
            return Fit(reduced, at, point, None)
        rows = batch_of(reduced.basis, self.held)
        features = put(np.asarray(reduced.features(rows.xi), dtype))
        table = Table(eqx.tree_at(lambda batch: batch.features, rows, features))
        lower, adjoint = at.asked(
            _losses, self.x, point.W, point.adjoint, on=Bilevel(at.problem, table, table, at.reduced.W0)
        )
        return Fit(reduced, at, point, np.stack([lower, adjoint if self.study.shared else 0 * lower]).astype(float))

    def _scales(self, fit: Fit) -> tuple[Float[np.ndarray, " dx"], float]:
        """The distance along each coordinate over which the objective curves by 1, 0 where it does not; and its spread
        over the samples. Once."""
        if self.scales is None:
            unit, point = units_by_products(fit.at, fit.point), fit.point
            spread = fit.at.row_scales(point.x, point.W, centre=point.value).spread or abs(point.value)
            self.scales = np.where(np.isfinite(unit), unit, 0.0), spread
        return self.scales

    def difference(self, few: Fit, many: Fit) -> tuple[bool, str]:
        """Whether what further functions change counts, and what it is in words."""
        if few.held is not None and many.held is not None:
            gained = few.held - many.held
            errors = np.std(gained, axis=1) / np.sqrt(gained.shape[1])
            clear = float(np.max(np.mean(gained, axis=1) / np.where(errors > 0, errors, np.inf)))
            by = f"improve the policy on held-out samples by {clear:.1f} standard errors"
            return clear > CLEARLY, by if clear > 0 else "not improve the policy on held-out samples"
        unit, spread = self._scales(few)
        moved = unit * (many.point.gradient - few.point.gradient)
        share = max(abs(many.point.value - few.point.value), float(moved @ moved) / 2) / spread
        return not share <= SETTLED, f"change the objective by {share:.1g} of its spread over the samples"


def level_by_doubling(
    study: Study,
    x: Float[np.ndarray, " dx"],
    spent: Counter,
    key: Array,
    least: int | None,
    policy: Callable | None,
) -> tuple[int, str]:
    """The level up to which functions are needed at ``x``, and the reason in words; `least`: one chosen before, which
    led to a `policy`.

    Twice as many are tried until they make no difference; where noise may hide one of two steps, both.
    """
    search = Doubling(study, x, spent, key)
    few = min(8, search.most // 2) if search.held is None else min(4, search.most // 2)
    level = next((k for k in _FIRST if search.count(k) <= few), 0) if least is None else least
    fit, chosen, misses, words = search.fit(level, policy), level, 0, ""
    while misses < (2 if least is None and search.held is not None else 1):
        level = 2 * level + 1
        if search.count(level) > search.most:
            return chosen, words or f"the samples support no more than {search.most} functions"
        richer = search.fit(level, fit)
        if not richer.point.sound:
            return chosen, words or "more functions could not be fitted"
        counts, change = search.difference(fit, richer)
        words = f"{search.count(level)} would {change}"
        if counts:
            fit, chosen, misses = richer, level, 0
        else:
            misses += 1
    return chosen, words
