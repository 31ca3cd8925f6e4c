"""``Direct``: what methods without a reduction share: their call, what it returns, and where noise is drawn from."""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..answer import Solution
from ..derivatives import AtContext, flattened, shaped_like
from ..ground import arithmetic, as_key, entered, positive, split_key, whole
from ..iteration import Result
from ..problem import Data, Finite, Level, Problem, enter
from ..study import Study, precision_for

NO_SAMPLER = (
    "{name} needs many draws of eta given a context, but these data have about one for each context. Give "
    "Problem(conditional=draw), a sampler draw(key, xi, size) -> eta. No sampler is needed by the reduction, "
    "cb.solve(problem, samples), nor by cb.direct.LocalWeights() and cb.direct.Amortized()."
)


@dataclass(frozen=True, eq=False)
class DirectSolution:
    """The solution of a method whose policy, if it has one, is not written in a basis.

    - `x`: the decision; `result`: how it ended, with `detail`.
    - `history`: by step, including ``seconds`` and ``x`` (flattened); `stats`: calls and samples by kind, seconds.
    - `choices`: what was chosen for the user, in words.
    - `follow`: the policy at contexts as the library keeps them, or a sentence that says why there is none.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.direct.LocalWeights().solve(case.problem, case.train)
    >>> isinstance(solution, cb.direct.DirectSolution), solution.x.shape, solution.result.name
    (True, (2,), 'STATIONARY')
    """

    problem: Problem
    x: PyTree[Any]
    result: Result
    follow: Callable[[Any], PyTree] | str
    history: Mapping[str, np.ndarray] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""

    @property
    def converged(self) -> bool:
        """Whether it ended at a stationary point of what it minimises."""
        return self.result.good

    def policy(self, xi: Any) -> PyTree[Any]:
        """``y`` at contexts, batched over leading axes; raises if the method has no policy."""
        if isinstance(self.follow, str):
            raise TypeError(self.follow)
        domain = self.problem.domain
        rows = (contexts := enter(domain, xi, "solution.policy: xi")).rows(domain)
        inside, xp = domain.contains(rows), arithmetic(rows)
        aligned = lambda a: inside.reshape(-1, *[1] * (a.ndim - 1))
        some = xp.asarray(domain.snap(domain.place(np.zeros((1, domain.dimension))), rows.dtype))
        try:
            y = self.follow(jnp.asarray(xp.where(aligned(rows), xp.asarray(rows), some.astype(rows.dtype))))
        except jax.errors.TracerArrayConversionError as error:
            raise TypeError(
                "solution.policy: this method's policy is not traceable; call it outside of jit."
            ) from error
        lead = contexts.values.shape[: contexts.values.ndim - len(domain.shape)]
        there = lambda a: jnp.where(aligned(a), a, jnp.nan)
        return jax.tree.map(lambda a: there(a).reshape(*lead, *a.shape[1:]), y)

    def __repr__(self) -> str:
        choices = "".join(f"\n  {name}: {words}" for name, words in self.choices.items())
        x = np.array2string(flattened(self.x), precision=5, threshold=12)
        return f"DirectSolution(converged={self.converged})\n  x: {x}\n  {self.result} {self.detail}".rstrip() + choices


class Limits:
    """How far a run may go: so many steps, and so many seconds where they are given; and its history."""

    def __init__(self, steps: int, seconds: float | None):
        self.steps, self.seconds, self.began = steps, seconds, time.perf_counter()
        self.rows: list[dict[str, Any]] = []

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    @property
    def spent(self) -> bool:
        """Whether the seconds are over."""
        return self.seconds is not None and self.elapsed > self.seconds

    def record(self, step: int, x: np.ndarray, **values: Any) -> None:
        """One more entry of the history."""
        self.rows.append({"step": step, "seconds": self.elapsed, "x": np.array(x, float), **values})

    def history(self) -> dict[str, np.ndarray]:
        """The curves."""
        return {name: np.array([row[name] for row in self.rows]) for name in (self.rows[0] if self.rows else ())}


@dataclass(frozen=True)
class DirectRun:
    """How a run ended: the vector ``x``, the result, the policy, calls and samples by kind, what was chosen."""

    x: np.ndarray
    result: Result
    follow: Callable[[Any], PyTree] | str
    spent: Mapping[str, Any]
    choices: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""
    basis: tuple[Any, PyTree] | None = None  # the fitted basis and the coefficients, of a policy that has them


class Direct(eqx.Module):
    """A method that solves the contextual problem without reducing it: ``method.solve(problem, samples)``.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> method: cb.direct.Direct = cb.direct.LocalWeights()
    >>> method.solve(case.problem, case.train, steps=2).converged  # the same as cb.solve(..., solver=method, steps=2)
    False
    """

    @property
    def exact(self) -> bool:
        """Whether it computes in double precision, whatever JAX's setting."""
        return False

    @property
    @abstractmethod
    def default_steps(self) -> int:
        """The default limit on steps."""

    @abstractmethod
    def run(self, study: Study, key: Array, limits: Limits) -> DirectRun:
        """From checked data to the end."""

    def solve(
        self, problem: Problem, samples: Data, steps: int | None = None, key: Any = 0, seconds: float | None = None
    ) -> "Solution | DirectSolution":
        """Solves a contextual bilevel problem; ``cb.solve(problem, samples, solver=method)`` does the same.

        **Arguments:**

        - `steps`: the maximal number of steps; `seconds`: no step starts after this time.
        - `key`: seed of everything random, an integer or a JAX key.
        """
        entered("solve", problem, samples, key)
        steps = self.default_steps if steps is None else whole("steps", steps)
        if seconds is not None:
            positive("seconds", seconds)
        wanted, limits = precision_for(problem, samples, exact=self.exact), Limits(steps, seconds)
        with wanted.context():
            study = Study.of(problem, samples, wanted)
            if study.constrained is not None:
                raise ValueError(
                    f"{type(self).__name__} does not support constraints on y; cb.solve(problem, samples) does."
                )
            for_stream, for_run = split_key(as_key(key))
            study = study.finite(for_stream).here
            ended = self.run(study, for_run, limits)
        x = wanted.back(shaped_like(study.problem.x0, ended.x, study.dtype))
        samples_used = sum(kind["samples"] for kind in ended.spent.values())
        steps_taken = limits.rows[-1]["step"] if limits.rows else 0
        stats = {"steps": steps_taken, "samples": samples_used, "seconds": limits.elapsed, "oracles": ended.spent}
        choices = {"solver": f"{self}: without a reduction.", **ended.choices}
        common = {"history": limits.history(), "stats": stats, "choices": choices, "detail": ended.detail}
        if ended.basis is not None:
            fitted, W = ended.basis
            solution = Solution(jax.tree.map(jnp.asarray, x), W, fitted, ended.result, **common)
            return solution.rounded(wanted.returned) if wanted.dtype == np.float64 else solution
        return DirectSolution(problem, x, ended.result, ended.follow, **common)


NoiseSampler = Callable[[Array, Array, int], PyTree]  # of a key, a context and a size


class _AnyRow(eqx.Module):
    """Rows that do not depend on the context."""

    eta: PyTree
    count: int = eqx.field(static=True)

    def __call__(self, key: Array, xi: Array, size: int) -> PyTree:
        index = jax.random.randint(key, (size,), 0, self.count)
        return jax.tree.map(lambda a: jnp.asarray(a)[index], self.eta)


class _RowsOfValue(eqx.Module):
    """Rows of the same one of finitely many contexts, drawn by their weights."""

    domain: Finite
    eta: PyTree
    until: Float[Array, " values+1"]  # the weight of all rows of the values before
    sums: Float[Array, " n"]  # of the rows up to each, sorted by value

    def __call__(self, key: Array, xi: Array, size: int) -> PyTree:
        value = self.domain.index(xi)
        lo, hi = self.until[value], self.until[value + 1]
        index = jnp.searchsorted(self.sums, lo + (hi - lo) * jax.random.uniform(key, (size,), self.sums.dtype), "right")
        return jax.tree.map(lambda a: a[jnp.minimum(index, len(self.sums) - 1)], self.eta)


def noise_given(study: Study, name: str) -> NoiseSampler:
    """How noise is drawn at a context; raises where the data do not show it. `name`: of the method that asks."""
    problem, lower = study.problem, study.lower
    level: Any = lower
    if not study.lower_noise:
        return _AnyRow(jax.tree.map(lambda a: jnp.asarray(a)[:1], lower.example().eta), 1)
    if lower.crossed:
        return _AnyRow(level.eta, level.count)
    if problem.conditional is not None:
        study.check_conditional()
        return problem.conditional
    if isinstance(problem.domain, Finite):
        value, share = np.asarray(problem.domain.index(level.xi)), np.asarray(level.mean_one_weights())
        order = np.argsort(value, kind="stable")
        sums = np.cumsum(share[order])
        counts = np.bincount(value, minlength=len(problem.domain.values))
        until = np.concatenate([[0.0], sums])[np.concatenate([[0], np.cumsum(counts)])]
        eta = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[order]), level.eta)
        return _RowsOfValue(problem.domain, eta, jnp.asarray(until), jnp.asarray(sums))
    raise ValueError(NO_SAMPLER.format(name=name))


def draw_joint(level: Level, key: Array, size: int) -> tuple[Any, PyTree]:
    """Joint draws ``(xi, eta)`` from what a level sees."""
    data: Any = level
    for_context, for_row = jax.random.split(key)
    if not level.crossed:
        index = _picked(for_row, data.weights, len(data), size)
        return jax.tree.map(lambda a: jnp.asarray(a)[index], (data.xi, data.eta))
    row = jax.random.randint(for_row, (size,), 0, data.count)
    eta = jax.tree.map(lambda a: jnp.asarray(a)[row], data.eta)
    if level.law is not None:
        return level.law.sample(for_context, size), eta
    contexts = data.contexts()
    return jnp.asarray(contexts.xi)[_picked(for_context, contexts.weights, len(contexts), size)], eta


def _picked(key: Array, weights: Any, count: int, size: int) -> Array:
    if weights is None:
        return jax.random.randint(key, (size,), 0, count)
    weights = jnp.asarray(weights)
    return jax.random.choice(key, count, (size,), p=weights / jnp.sum(weights))


def objectives_of(study: Study) -> AtContext:
    """Both objectives at one context."""
    return AtContext(study.problem.upper, study.problem.lower)


def outer_step(slope: Callable[[Array], Array], x: Array, rounds: int = 8) -> float:
    """One over the largest curvature of the upper objective at the start, from differences of its gradient: the power
    method."""
    base = slope(x)
    reach = float(jnp.finfo(x.dtype).eps) ** (1 / 3) * (1 + float(jnp.linalg.norm(x)))
    direction, size = base, 0.0
    for _ in range(rounds):
        length = float(jnp.linalg.norm(direction))
        if not 0 < length < np.inf:
            break
        direction = (slope(x + reach / length * direction) - base) / reach
        size = float(jnp.linalg.norm(direction))
    return 1 / size if 0 < size < np.inf else 1.0


class Lengths:
    """Steps in chunks of one compiled program, their lengths falling to zero along a cosine."""

    def __init__(self, limits: Limits, dtype: Any):
        self.limits, self.dtype, self.done = limits, dtype, 0
        self.chunk = min(10, limits.steps)  # runs of any length share one program
        self.slopes: list[np.ndarray] = []

    def __iter__(self) -> Any:
        """The numbers of the steps of a chunk, and the share of the first length that each has."""
        while self.done < self.limits.steps and not self.limits.spent:
            numbers = np.arange(self.done, min(self.done + self.chunk, self.limits.steps))
            at = (numbers + 0.5) / self.limits.steps
            self.done = int(numbers[-1]) + 1
            yield jnp.asarray(numbers), jnp.asarray((1 + np.cos(np.pi * at)) / 2, self.dtype)

    def record(self, x: Any, slope: Any) -> None:
        """Where a chunk ended, and the mean of its gradients."""
        self.slopes.append(np.asarray(slope, float))
        self.limits.record(self.done, np.asarray(x), gradient=float(np.linalg.norm(self.slopes[-1])))

    def result(self) -> Result:
        """Whether the gradients of the last quarter average to what their own noise explains."""
        last = np.array(self.slopes[-max(1, len(self.slopes) // 4) :])
        if len(last) < 4:
            return Result.BUDGET
        error = np.sqrt(np.sum(last.var(axis=0, ddof=1)) / len(last))
        return Result.NOISE if np.linalg.norm(last.mean(axis=0)) <= 2 * error else Result.BUDGET
