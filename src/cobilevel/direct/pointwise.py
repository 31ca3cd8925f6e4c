r"""The lower level solved exactly at given contexts, and the gradient of the upper objective through that.

With solutions $y_k$ at nodes $\xi_k$ and $y(\xi_i) = \sum_k S_{ik} y_k$ at the contexts of the upper level,
$$\nabla F = \frac1n \sum_i \partial_1 f_i - \sum_k \partial_{12} g_k \, v_k, \qquad
\partial_{22} g_k \, v_k = \frac1n \sum_i S_{ik}\, \partial_2 f_i .$$
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, PyTree

from ..derivatives import AT_ONCE, AtContext, flattened, totals_of
from ..iteration import Result
from ..lower import DENSE_Y, Dense, Law, MatrixFree, minimise
from ..study import Study
from .method import Direct, Limits, objectives_of, outer_step


class Exact(Direct):
    """A method that solves the lower level exactly, in double precision: it takes few steps."""

    @property
    def exact(self):
        return True

    @property
    def default_steps(self):
        return 200


class NoiseRows(eqx.Module):
    """Some contexts, each with rows of noise: all those of `eta`, or the ones in `index`; `weights` sum to 1."""

    xi: Any
    eta: PyTree
    weights: Any
    index: Any = None

    @property
    def each(self) -> int:
        """How many rows a context has."""
        return self.weights.shape[-1]

    @staticmethod
    def of(xi: Any, eta: PyTree, dtype: Any, weights: Any = None, index: Any = None) -> "NoiseRows":
        """`weights`: ``(rows,)`` or one row a context, of any sum; equal ones where left out."""
        if weights is None:
            count = jax.tree.leaves(eta)[0].shape[0] if index is None and jax.tree.leaves(eta) else 1
            weights = np.ones(count) if index is None else np.ones(index.shape)
        weights = np.asarray(weights, float)
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return NoiseRows(_on_device(xi), _on_device(eta), jnp.asarray(weights, dtype), _on_device(index))

    @staticmethod
    def of_law(study: Study, law: Law) -> "NoiseRows":
        """Of a conditional law; where it draws, the draws are made once."""
        if law.keys is None:
            weights = np.ones(law.rows) if law.weights is None else law.weights
            return NoiseRows.of(law.xi, law.eta, study.dtype, weights)
        study.check_conditional()
        xi = jnp.asarray(law.xi)
        drawn = _drawn(study.problem.conditional, law.keys, xi, law.rows)
        eta = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), drawn)
        return NoiseRows.of(xi, eta, study.dtype, index=np.arange(len(xi) * law.rows).reshape(len(xi), law.rows))

    @staticmethod
    def of_upper(study: Study) -> tuple["NoiseRows", Float[np.ndarray, " n"]]:
        """The contexts of the upper level, with their data and the share of each."""
        level: Any = study.upper
        contexts = level.contexts()
        index = None if level.crossed else np.arange(len(contexts))[:, None]
        return NoiseRows.of(contexts.xi, level.eta, study.dtype, index=index), contexts.shares()

    def map(self, one: Any, numbers: int, *columns: Any) -> Any:
        """``one(*columns, xi, eta, weights)`` for each context, so many at a time that `numbers` a row fit."""

        def at(own: tuple) -> Any:
            xi, weights, index, *rest = own
            eta = self.eta if index is None else jax.tree.map(lambda a: a[index], self.eta)
            return one(*rest, xi, eta, self.weights if weights is None else weights)

        own = (self.xi, self.weights if self.weights.ndim == 2 else None, self.index, *columns)
        size = max(1, AT_ONCE // (self.each * numbers))
        return jax.vmap(at)(own) if size >= len(self.xi) else jax.lax.map(at, own, batch_size=size)


@eqx.filter_jit
def _drawn(draw: Any, keys: Any, xi: Any, rows: int) -> PyTree:
    return jax.vmap(lambda key, context: draw(key, context, rows))(keys, xi)


def _on_device(tree: PyTree) -> PyTree:
    return jax.tree.map(jnp.asarray, tree)


@eqx.filter_jit
def _slopes(functions: AtContext, rows: NoiseRows, x: Any, y: Any) -> Any:
    return rows.map(lambda q, *own: functions.slope(x, q, *own), 1 + y.shape[1], y)


@eqx.filter_jit
def _models(functions: AtContext, rows: NoiseRows, x: Any, y: Any) -> Any:
    model = lambda q, *own: (*functions.slope(x, q, *own), functions.hessian(x, q, *own))
    return rows.map(model, 1 + y.shape[1] * (1 + y.shape[1]), y)


@eqx.filter_jit
def _products(functions: AtContext, rows: NoiseRows, x: Any, y: Any, v: Any) -> Any:
    return rows.map(lambda q, p, *own: functions.product(x, q, p, *own), 1 + y.shape[1], y, v)


@eqx.filter_jit
def _crossed(functions: AtContext, rows: NoiseRows, x: Any, y: Any, v: Any) -> Any:
    return jnp.sum(rows.map(lambda q, p, *own: functions.cross(x, q, p, *own), len(x) + y.shape[1], y, v), axis=0)


@eqx.filter_jit
def _uppers(functions: AtContext, rows: NoiseRows, shares: Any, x: Any, y: Any) -> Any:
    value, d1, d2 = rows.map(lambda q, *own: functions.upper_slopes(x, q, *own), len(x) + y.shape[1], y)
    return shares @ value, shares @ d1, shares[:, None] * d2


@dataclass
class Pointwise:
    """The upper objective and its gradient. `spread`: which node each upper context is, or a matrix ``S``."""

    study: Study
    nodes: NoiseRows
    spread: Int[np.ndarray, " n"] | Float[np.ndarray, "n k"]
    y: np.ndarray = field(init=False)  # the last solutions, from which the next solve starts
    v: np.ndarray | None = None  # the last adjoint at the nodes, times the share of upper contexts that each serves
    trouble: int = 0  # nodes at which the last solve failed
    spent: Counter = field(default_factory=Counter)

    def __post_init__(self):
        self.functions, dtype = objectives_of(self.study), self.study.dtype
        rows, shares = NoiseRows.of_upper(self.study)
        self.upper, self.shares = rows, jnp.asarray(shares, dtype)
        self.y = np.tile(flattened(self.study.problem.y0), (len(self.nodes.xi), 1))
        self.first = None

    def _count(self, kind: str, rows: NoiseRows) -> None:
        self.spent[kind, "calls"] += 1
        self.spent[kind, "samples"] += rows.each * len(rows.xi)

    def _asked(self, kind: str, program: Any, *arguments: Any) -> Any:
        self._count(kind, self.nodes)
        found = program(self.functions, self.nodes, *(jnp.asarray(a, self.study.dtype) for a in arguments))
        return jax.tree.map(lambda a: np.asarray(a, float), found)

    def objective(self, x: np.ndarray) -> Dense | MatrixFree:
        """The lower level at the nodes, as functions of ``y``."""
        if self.y.shape[1] <= DENSE_Y and self.y.size * self.y.shape[1] <= AT_ONCE:  # the Hessians at all nodes fit
            return Dense(lambda y: self._asked("hessian", _models, x, y), self.study.eps)
        slope = lambda y: self._asked("lower_gradient", _slopes, x, y)
        return MatrixFree(slope, lambda y, v: self._asked("hessian_vector", _products, x, y, v), self.study.eps)

    def solved(self, x: np.ndarray) -> tuple[Any, Any]:
        """The lower level minimised at all nodes: its objective, and where it ended."""
        objective = self.objective(x)
        if self.first is None:
            self.first = np.linalg.norm(objective.local(self.y)[1], axis=1)
        end = minimise(objective, self.y, self.study.eps**0.5 * self.first, steps=50)
        self.trouble = int(np.sum(~end.converged))
        if np.isfinite(end.point).all():
            self.y = end.point
        return objective, end

    def along(self, y: np.ndarray) -> np.ndarray:
        """From nodes to the contexts of the upper level."""
        return y[self.spread] if self.spread.ndim == 1 else self.spread @ y

    def back(self, d2: np.ndarray) -> np.ndarray:
        """The transpose of that."""
        if self.spread.ndim == 2:
            return self.spread.T @ d2
        total = np.zeros((len(self.nodes.xi), d2.shape[1]))
        np.add.at(total, self.spread, d2)
        return total

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """``F`` and its gradient."""
        objective, end = self.solved(x)
        y, dtype = self.along(end.point), self.study.dtype
        self._count("upper_gradient", self.upper)
        parts = _uppers(self.functions, self.upper, self.shares, jnp.asarray(x, dtype), jnp.asarray(y, dtype))
        value, d1, d2 = (np.asarray(part, float) for part in parts)
        right = self.back(d2)
        v, usable = objective.solve(end.hessian, right, np.zeros_like(right), self.study.eps**0.5)
        lost = ~usable & np.any(right != 0, axis=1)
        if lost.any():
            self.trouble = int(np.sum(lost))
            return np.nan, np.full_like(d1, np.nan)
        self.v = v
        return float(value), d1 - self._asked("cross_product", _crossed, x, end.point, v)


class _SpentError(Exception):
    """The budget is spent."""


def descend_exactly(objective: Pointwise, limits: Limits) -> tuple[np.ndarray, Result, str, dict[str, Any]]:
    """L-BFGS-B within the bounds, started again where it stopped while that helps: a kink ends its line search.

    Returns the best point, how it ended, and what was spent.
    """
    from scipy.optimize import minimize  # takes long to import

    problem, eps = objective.study.problem, objective.study.eps
    lo, hi = (flattened(end) for end in problem.x_bounds)
    small = lambda value, size: size <= max(eps**0.25 * limits.rows[0]["gradient"], eps**0.5 * (1 + abs(value)))
    free = lambda x, slope: np.linalg.norm(x - np.clip(x - slope, lo, hi))
    best: list[Any] = [np.inf, flattened(problem.x0), np.inf]

    def ask(x: np.ndarray) -> tuple[float, np.ndarray]:
        if len(limits.rows) >= limits.steps or limits.spent:
            raise _SpentError
        value, slope = objective(x)
        limits.record(len(limits.rows) + 1, x, upper=value, gradient=free(x, slope))
        if value < best[0]:
            best[:] = [value, x.copy(), free(x, slope)]
        return value, slope

    x, before, over = best[1], np.inf, False
    options = {"method": "L-BFGS-B", "bounds": list(zip(lo, hi, strict=True))}
    options["options"] = {"maxcor": 20, "ftol": eps, "gtol": 0.0}
    try:
        inside = lambda at: ask(np.clip(np.asarray(at, float), lo, hi))
        unit = outer_step(lambda at: jnp.asarray(inside(at)[1]), jnp.asarray(x), rounds=1)
        scaled = lambda at: tuple(unit * part for part in inside(at))  # so that its first step, by -gradient, is sound
        while np.isfinite(best[0]):
            minimize(scaled, x, jac=True, **options)
            if not best[0] < before - eps**0.5 * abs(best[0]):
                break
            x, before = best[1], best[0]
    except _SpentError:
        over = True
    failed = f"({objective.trouble} of {len(objective.y)} lower-level solves did not converge.)"
    detail, spent = failed if objective.trouble else "", totals_of(objective.spent)
    if not np.isfinite(best[0]):
        return best[1], Result.LOWER_FAILED, detail, spent
    result = Result.STATIONARY if small(best[0], best[2]) else Result.BUDGET if over else Result.STALLED
    return best[1], result, detail, spent
