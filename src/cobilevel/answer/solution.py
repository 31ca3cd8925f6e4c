"""``Solution``: the decision, the policy for every context, and how they were obtained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree

from ..basis import FeatureMap, combine, domain_to_json
from ..ground import arithmetic, double, kept_digits, path_given, put, shaped_like
from ..inference import Uncertainty, unknown
from ..iteration import Result, Saved
from ..lower import Feasibility
from ..problem import Problem, enter
from ..study import Form, Same, Smoothing, Study
from .contexts import policy_table
from .identity import Objectives, check_constraints
from .plot_policy import plot_policy
from .saving import write_solution
from .summary import in_notebook, printed, summarised


class Precise(NamedTuple):
    """A solution with all the digits it was computed with, as NumPy arrays, which JAX's precision does not affect."""

    x: PyTree[np.ndarray]
    W: PyTree[np.ndarray]
    transform: np.ndarray | None
    constant: np.ndarray


@dataclass(frozen=True, eq=False)
class Solution:
    """What ``solve`` returns.

    - `x`: the upper-level decision; `W`: the coefficients, one leading axis of length ``N`` before each leaf of ``y``.
    - `basis`: the fitted basis, callable.
    - `result`: how it ended, a ``Result`` that reads as a sentence; `detail`: where and when, if there is more to say.
    - `history`: curves over steps; `stats`: oracle calls, samples, seconds, bytes, rank.
    - `choices`: what the library chose for the user, in words.
    - `inference`: the value of `uncertainty`, or a function that computes it.
    - `form`, `smoothing`: if ``y`` is constrained, the map to it from the unknown that `W` belongs to, and the
      barrier; `feasibility`: how far the inequalities are met; `constraints`: all constraints in words.
    - `precise`: `x`, `W` and the basis in double precision, if they are returned in single; used to judge, save and
      resume.
    - `policy_noise`: a function that computes `policy_standard_error`; a solution from a file has none.
    - `objectives`: the functions it was found with, so that it is not mistaken for a solution of others.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> solution.converged
    True
    >>> print(solution.result)
    Converged: the projected gradient promises no decrease beyond the tolerance or rounding.
    >>> solution.policy(np.array([-0.5, 0.0, 0.5])).shape
    (3, 1)
    >>> solution.basis.size
    4
    """

    x: PyTree[Array]
    W: PyTree[Array]
    basis: FeatureMap
    result: Result
    history: Mapping[str, np.ndarray] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    choices: Mapping[str, str] = field(default_factory=dict)
    state: Saved | None = None
    detail: str = ""
    inference: "Uncertainty | Callable[[], Uncertainty] | None" = None
    precise: Precise | None = None
    form: Form | None = None
    smoothing: Smoothing | None = None
    feasibility: Feasibility | None = None
    constraints: tuple[str, ...] = ()
    policy_noise: Callable[[Any], Any] | None = None
    objectives: Objectives | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What pickling and copying keep: the same as a file, without the functions."""
        if self.form is not None and not isinstance(self.form.stated, Same | None):
            raise TypeError(
                "a solution under equalities that vary holds the function b of the problem and cannot be pickled. "
                "Write it with solution.save(path), and read it with cb.load(path, problem)."
            )
        objectives = None if self.objectives is None else self.objectives.kept_of(self.x, self.at)
        known = {part.name: getattr(self, part.name) for part in fields(self)}
        return known | {"inference": self.uncertainty, "policy_noise": None, "objectives": objectives}

    @property
    def converged(self) -> bool:
        """Whether the run ended at a stationary point of the reduced problem."""
        return self.result.good

    @property
    def uncertainty(self) -> Uncertainty:
        """How well the samples determine ``x``; computed on first access, e.g. when the solution is printed."""
        known = self.inference
        if callable(known):
            known = known()
            object.__setattr__(self, "inference", known)
        return known or unknown(self.x, "standard errors are not known: the solution holds no samples.")

    @property
    def standard_error(self) -> PyTree:
        """The standard error of each coordinate of ``x``, in its shape: infinite if the samples do not determine it."""
        return shaped_like(self.x, self.uncertainty.error)

    @property
    def interval(self) -> tuple[PyTree, PyTree]:
        """The ends of 95% intervals of the coordinates of ``x``, each in its shape."""
        lo, hi = self.uncertainty.interval
        return shaped_like(self.x, lo), shaped_like(self.x, hi)

    def policy(self, xi: Any) -> PyTree[Array]:
        """``y(xi) = sum_k Phi_k(xi) W[k]``, batched over leading axes; NaN outside the domain, unknown categories
        included.

        Contexts are passed as in the data: an array, strings, a data frame or a row of one, or a dict of columns, in
        which single values are repeated.
        """
        return self.at(enter(self.basis.domain, xi, "solution.policy: xi").values)

    def at(self, xi: Any) -> PyTree[Array]:
        """``policy`` at contexts as the library keeps them: one array, strings as their positions."""
        if self.precise is None or isinstance(xi, Tracer):
            u = combine(self.basis.at(xi), self.W)
            return u if self.form is None else self.form.along(self.x, u, jnp.asarray(xi), len(self.basis.domain.shape))
        with double():
            y = self.in_full().at(kept_digits(xi))
        return _in_dtype(y, self.basis.constant.dtype)

    def policy_standard_error(self, xi: Any) -> PyTree[np.ndarray]:
        """The standard error of the policy at contexts, given ``x``, in the shape of ``policy(xi)``.

        The policy plus or minus 1.96 standard errors covers, 95% of the time, the best policy in the basis at this
        ``x``; the error of the basis itself is not included (``certify`` measures that), but under inequalities what it
        misses at the corners of the policy is. NaN for categories without samples.
        """
        return self.standard_error_at(enter(self.basis.domain, xi, "solution.policy_standard_error: xi").values)

    def standard_error_at(self, xi: Any) -> PyTree[np.ndarray]:
        """``policy_standard_error`` at contexts as the library keeps them."""
        y, rows = self.at(xi), np.asarray(xi).reshape(-1, *self.basis.domain.shape)
        if self.form is not None and self.form.null is not None:
            errors = "unknown for a policy under equalities."
        elif self.policy_noise is None:
            errors = "a solution from a file, a copy of one, or one of a stream, keeps no samples."
        else:
            errors = self.policy_noise(rows)
        if isinstance(errors, str):
            raise ValueError(f"policy_standard_error: {errors}")
        lead = np.shape(xi)[: np.ndim(xi) - len(self.basis.domain.shape)]
        shaped = shaped_like(y, errors.reshape(*lead, errors.shape[1]), lead=len(lead))
        return jax.tree.map(lambda error, like: error.astype(like.dtype), shaped, y)

    def full_parts(self) -> tuple[PyTree, PyTree, Any, Any]:
        """``x``, ``W``, and transform and constant of the basis, in double precision if they were found in it; parts
        replaced since then are taken as they are."""
        own = (self.x, self.W, self.basis.transform, self.basis.constant)
        if self.precise is None:
            return own
        return tuple(_full(precise, given) for precise, given in zip(self.precise, own, strict=True))

    def in_full(self) -> "Solution":
        """The solution with all its digits, for a caller who computes in double precision."""
        return self.with_parts(put(self.full_parts()))

    def with_parts(self, parts: tuple[PyTree, PyTree, Any, Any], precise: Precise | None = None) -> "Solution":
        """The same with other digits of what ``full_parts`` gives."""
        x, W, transform, constant = parts
        basis = replace(self.basis, transform=transform, constant=constant)
        return replace(self, x=x, W=W, basis=basis, precise=precise)

    def rounded(self, dtype: Any) -> "Solution":
        """The solution in a floating dtype; the values it was computed in are kept in `precise`."""
        parts = (self.x, self.W, self.basis.transform, self.basis.constant)
        if all(leaf.dtype == dtype for leaf in jax.tree.leaves(parts)):
            return self
        return self.with_parts(_in_dtype(parts, dtype), Precise(*jax.tree.map(np.asarray, parts)))

    def save(self, path: str | Path) -> Path:
        """Writes the solution to one file, atomically; ``cobilevel.load`` reads it back.

        The file keeps a few of the samples, with the values of both objectives there: ``load`` compares them.
        """
        return write_solution(self, path_given("save: path", path))

    def table(self, contexts: Any) -> Any:
        """The policy at contexts given as an array, a dict of columns or a data frame, one context per row.

        Returns a data frame of the same library, or a dict of NumPy columns if no frame was given: the contexts, the
        components of ``y``, and ``in_domain``. The policy is NaN outside the domain and at unknown categories.
        """
        return policy_table(self, contexts)

    def plot(self, over: Any = None, at: Mapping[str, Any] | None = None, samples: Any = None) -> Any:
        """Draws the policy over one or two contexts and returns the Matplotlib figure.

        - `over`: the name of a context, or two; by default all if there are at most two, else the first. Contexts of
          an ``Interval`` are called ``"xi"``, of a ``Box`` ``"xi[0]"``, ``"xi[1]"``.
        - `at`: values at which the others are held, by name; by default their median or most frequent value in
          `samples`, or without samples the middle of the domain or the first category. The title states them.
        - `samples`: shown as faint points if ``eta`` has the shapes of ``y``.

        Lines and categories are drawn with a 95% interval from ``policy_standard_error``.
        """
        return plot_policy(self, over, at, samples)

    def summary(self) -> str:
        """``x`` with its errors, how the run ended, the basis, what was chosen, samples and seconds, as text."""
        return summarised(self)

    def __repr__(self):
        return printed(self)

    def _repr_html_(self) -> str:
        return in_notebook(self)


def _in_dtype(tree: PyTree, dtype: Any) -> PyTree:
    xp = arithmetic(tree)
    return put(jax.tree.map(lambda a: xp.asarray(a).astype(dtype), tree))


def _full(precise: PyTree, given: PyTree) -> PyTree:
    """The digits kept, unless something else was put in their place."""
    try:
        same = jax.tree.map(lambda p, g: p.shape == g.shape and np.array_equal(p.astype(g.dtype), g), precise, given)
    except ValueError:
        return given
    return precise if all(jax.tree.leaves(same)) else given


def check_solution(problem: Problem, solution: Any) -> None:
    """Raises if a solution does not belong to a problem, as far as shapes and domains show."""
    if not isinstance(solution, Solution):
        raise TypeError(f"solution must be a Solution, as cb.solve returns it, got {type(solution).__name__}.")
    if domain_to_json(solution.basis.domain) != domain_to_json(problem.domain):
        raise ValueError(
            f"the solution lives on {solution.basis.domain!r}, but the problem on {problem.domain!r}: the solution "
            "belongs to another problem."
        )
    wanted = jax.tree.map(lambda y: (solution.basis.size, *y.shape), problem.y0)
    for name, tree, asked in (("x", solution.x, jax.tree.map(jnp.shape, problem.x0)), ("W", solution.W, wanted)):
        shapes = jax.tree.map(jnp.shape, tree)
        if shapes != asked:
            raise ValueError(
                f"solution.{name} has the shapes {shapes}, but this problem needs {asked}: the solution belongs to "
                "another problem."
            )


def check_levels(caller: str, solution: Any, study: Study) -> None:
    """Raises if each level had rows of its own, and both are now to be judged by the same ones."""
    objectives = getattr(solution, "objectives", None)
    if objectives is not None and objectives.apart and study.shared:
        raise ValueError(
            f"{caller}: the solution was found from cb.Levels, with different rows for each level, but these samples "
            "would serve both. Pass cb.Levels(upper=..., lower=...)."
        )


def as_solved(problem: Problem, solution: Any) -> Problem:
    """The problem with the barrier that a solution was found with, if its constraints need one; raises if it was found
    under other constraints."""
    if isinstance(solution, Solution):
        check_constraints(problem, solution.constraints, "the solution")
    smoothing = getattr(solution, "smoothing", None)
    return problem if smoothing is None or not problem.constraints else problem.smoothed(smoothing)
