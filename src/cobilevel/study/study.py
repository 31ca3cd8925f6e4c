"""``Study``: a problem and its data, checked against each other once; everything after takes this and asks no more.

Here ``f`` and ``g`` are traced on one sample, and refused where they do not return one number or cannot be
differentiated; here it is decided whether each depends on ``eta``.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..functions import (
    Sampler,
    Traced,
    check_derivatives,
    failure,
    first_derivatives,
    second_derivatives,
    stopped,
    trace_objective,
)
from ..ground import Precision, as_key, put, split_key
from ..problem import (
    CHECK_ROWS,
    CONTEXTS_DRAWN_AT,
    LOOK_ROWS,
    Contexts,
    Data,
    Distribution,
    Domain,
    Finite,
    Level,
    Levels,
    Mixed,
    PartitionedSamples,
    Problem,
    Unpacked,
    check_conditional,
    check_contexts_kept,
    counted_once,
    enter,
)
from .standard_form import SOFT_SHARE, Constrained, Smoothing, standard_form


@dataclass(frozen=True, eq=False)
class Study:
    """What is to be solved, and from what: the problem in one precision, and what each level sees.

    - `problem`: with its starting points and bounds in `dtype`, what they and the samples promote to, and its functions
      as they are now (``Traced``).
    - `upper`, `lower`: the data of the two levels, parsed (rows of no weight are left out); the same object where they
      share it.
    - `lower_noise`: whether ``g`` depends on ``eta``.
    - `constrained`: where ``y`` is constrained, how it follows from the unknown that `problem` has in its place.
    - `repeated`: how many rows were copies of others, counted once with a weight.
    - `stated`: the problem in ``y`` itself, with its constraints, its functions traced: what it is recognised by.
    """

    problem: Problem
    upper: Level
    lower: Level
    dtype: Any
    lower_noise: bool
    constrained: Constrained | None = None
    stated: Problem | None = None
    repeated: int = 0

    @staticmethod
    def of(problem: Problem, samples: Data, precision: Precision | None = None, twice: bool = True) -> "Study":
        """Checks that problem and data fit together; raises, naming the argument and the remedy, where they do not.

        `twice`: whether second derivatives will be taken of the lower objective.
        """
        wanted = precision_for(problem, samples, exact=False) if precision is None else precision
        where = "samples.{}" if isinstance(samples, Levels) else "samples"
        lower = parsed_level(problem.domain, samples.lower, wanted.dtype, where.format("lower"))
        shared, given = samples.upper is samples.lower, problem
        upper = lower if shared else parsed_level(problem.domain, samples.upper, wanted.dtype, where.format("upper"))
        lower, below = counted_once(lower, problem.domain)
        upper, above = (lower, 0) if shared else counted_once(upper, problem.domain)
        leaves = jax.tree.leaves((problem.x0, problem.y0, *((r.xi, r.eta) for r in (upper.example(), lower.example()))))
        floats = [leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
        dtype = np.result_type(*floats) if wanted.dtype is None else wanted.dtype
        mixed = nullcontext() if wanted.dtype is None else jax.numpy_dtype_promotion("standard")
        with mixed:  # a function may hold numbers in another precision than the one asked for
            problem, constrained = problem.astype(dtype), None
            stated = now = as_of_now(problem, upper, lower, twice)  # also under constraints: errors are named
            if problem.constraints:
                problem, constrained = standard_form(problem, upper, lower)
                now = replace(problem, conditional=now.conditional)
            problem = now
        if isinstance(lower, PartitionedSamples):
            upper = lower = replace(lower, stated=lambda: (given, wanted))
        noise = _depends_on_noise(problem, lower)
        return Study(problem, upper, lower, dtype, noise, constrained, stated, below + above)

    @property
    def shared(self) -> bool:
        """Whether both levels see the same samples."""
        return self.upper is self.lower

    @property
    def endless(self) -> bool:
        """Whether a level is a stream."""
        return self.upper.endless or self.lower.endless

    @property
    def noisy(self) -> bool:
        """Whether samples of the lower level must be averaged before they show it; crossed data are averages."""
        return self.lower_noise and not self.lower.crossed

    @property
    def barred(self) -> bool:
        """Whether a barrier stands in for inequalities."""
        return self.constrained is not None and self.constrained.smoothing is not None

    @property
    def upper_noise(self) -> bool:
        """Whether ``f`` depends on ``eta``."""
        return self.problem.upper.uses_last_argument()

    @property
    def eps(self) -> float:
        """The precision of `dtype`."""
        return float(jnp.finfo(self.dtype).eps)

    @property
    def here(self) -> "Study":
        """The study on what of the data is in this process."""
        if self.lower.here is self.lower and self.upper.here is self.upper:
            return self
        return self.on(self.lower.here) if self.shared else self.on(self.lower.here, self.upper.here)

    def stopped(self) -> str:
        """Which derivatives of the objectives are not those of their values, in words; empty where all are."""
        problem, said = self.stated or self.problem, []
        for name, level in (("upper", self.upper), ("lower", self.lower)):
            names = stopped(getattr(problem, name), problem.x0, problem.y0, level.here.example)
            said += [f"{name} changes with {' and '.join(names)} otherwise than its derivative says"] if names else []
        if not said:
            return ""
        return (
            f"{'; '.join(said)} (jax.lax.stop_gradient): the gradient of the objective is then not that of its values, "
            "and x need not be a minimum. Remove it, unless it is meant so."
        )

    def check_conditional(self) -> None:
        """Raises where the user's sampler of noise at one context is of use, and is none."""
        if self.noisy and isinstance(self.problem.conditional, Sampler):
            seen = self.lower.example(CONTEXTS_DRAWN_AT)
            check_conditional(self.problem.conditional, seen.xi, seen.eta)

    def at(self, x: PyTree) -> "Study":
        """The same study with the problem starting from ``x``."""
        return replace(self, problem=self.problem.at(put(jax.tree.map(lambda a: np.asarray(a, self.dtype), x))))

    def smoothed(self, smoothing: Smoothing) -> "Study":
        """The same study with another barrier in place of its inequalities."""
        if self.constrained is None or self.constrained.smoothing is None:
            return self
        constrained, lower = self.constrained.smoothed(smoothing, _arguments(self.problem, self.lower))
        return replace(self, problem=replace(self.problem, lower=lower), constrained=constrained)

    def softened(self) -> "Study":
        """The same study with a barrier soft enough that no few samples carry it: to test and to measure noise with."""
        smoothing = None if self.constrained is None else self.constrained.smoothing
        if smoothing is None or float(smoothing.share) >= SOFT_SHARE:
            return self
        return self.smoothed(smoothing.sharper(float(smoothing.share) / SOFT_SHARE))

    def on(self, lower: Level, upper: Level | None = None) -> "Study":
        """The same problem on other data of the same kind; on `lower` alone, where that is what both levels see."""
        return replace(self, lower=lower, upper=lower if upper is None else upper)

    def with_nodes(self, nodes: int) -> "Study":
        """The same study with so many nodes per dimension wherever contexts are integrated and no number is stated."""
        lower = self.lower.with_nodes(nodes)
        return self.on(lower) if self.shared else self.on(lower, self.upper.with_nodes(nodes))

    def _each(self, change: Callable[[Level, Array], Level], key: Array) -> "Study":
        """A change of both levels' data; what they share stays shared."""
        for_upper, for_lower = split_key(key)
        if self.shared:
            return self.on(change(self.lower, for_upper))
        return self.on(change(self.lower, for_lower), change(self.upper, for_upper))

    def finite(self, key: Array) -> "Study":
        """The study with streams replaced by draws from them."""
        return self._each(lambda level, k: level.finite(k), key) if self.endless else self

    def thinned(self, key: Array, least: int) -> "Study":
        """A quarter of the data, or `least` rows where that is more."""
        return self._each(lambda level, k: level.thinned(k, max((level.count or 0) // 4, least)), key)


def precision_for(problem: Any, samples: Any, asked: str | None = None, exact: bool = True) -> Precision:
    """What a call on these computes in; raises where they are not a problem and data."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a cb.Problem, got {type(problem).__name__}.")
    _require_data(samples, "samples")
    laws = jax.tree.leaves(samples, is_leaf=lambda v: isinstance(v, Distribution))
    data = [leaf for leaf in laws if not isinstance(leaf, Distribution)]
    return Precision.of((problem.x0, problem.y0, data), asked, exact)


def _require_data(samples: Any, name: str) -> None:
    if isinstance(samples, Levels) and any(
        isinstance(one, PartitionedSamples) for one in (samples.upper, samples.lower)
    ):
        raise TypeError(
            f"{name}: the two levels cannot see different tables in partitions. Put both into one table, with a column "
            "of 1 or 0 that multiplies upper or lower; or pass Samples in memory."
        )
    if not isinstance(samples, Data):
        raise TypeError(
            f"{name} must be Samples, Product, Levels or Stream, got {type(samples).__name__}. Joint samples as "
            "arrays: cb.Samples(xi, eta); from a data frame: cb.Samples.from_frame(df, context=..., eta=...)."
        )


def joint_contexts(samples: Any, name: str) -> Any:
    """The contexts of data, as they were handed over; raises where these are none."""
    _require_data(samples, name)
    return samples.lower.contexts().xi


def parsed_level(domain: Domain, level: Level, dtype: Any, where: str) -> Level:
    """The data parsed; their contexts are checked in the precision they came in, and moved onto the domain with it."""
    if isinstance(level, PartitionedSamples):
        return replace(level, sample=parsed_level(domain, level.sample, dtype, where))
    name = where + (".draw(...).xi" if level.endless else ".contexts" if level.crossed else ".xi")
    level = level.with_contexts(lambda given: enter(domain, given, name, data=True))
    drawn = level.endless or level.law is not None
    if dtype == np.float32:
        check_contexts_kept(domain, None if drawn else level.contexts().xi, name)
    given = level.parsed(None if dtype == np.float64 else dtype)
    _check_contexts(domain, given, name)
    if dtype != np.float64:
        return given
    coarse = not drawn and given.contexts().xi.dtype == np.float32
    raised = level.parsed(dtype)
    return raised.with_contexts(lambda xi: Contexts(domain.snap(xi.values, dtype))) if coarse else raised


def _check_contexts(domain: Domain, level: Level, where: str) -> None:
    xi = level.example(LOOK_ROWS).xi if level.endless else level.contexts().xi
    if xi.shape[1:] != domain.shape:
        wanted = "(n,)" if not domain.shape else f"(n, {domain.dimension})"
        raise ValueError(f"{where} has shape {xi.shape}, but contexts of {domain!r} must be {wanted}.")
    for part, column, name in domain.columns(xi, where):
        _check_inside(part, column, name)
    if level.law is not None:
        corners = level.law.domain.place(jnp.outer(jnp.array([-1.0, 1.0]), jnp.ones(domain.dimension)))
        if not bool(jnp.all(domain.contains(corners))):
            raise ValueError(f"{where}: the distribution lives on {level.law.domain!r}, not inside {domain!r}.")


def _check_inside(domain: Domain, xi: Any, where: str) -> None:
    """Raises where contexts, or one column of them, are not of the domain."""
    if isinstance(domain, Finite):
        domain.check_distinct()
    inside = np.asarray(domain.contains(xi))
    if not inside.all():
        first = int(np.argmin(inside))
        hint = "Add the missing values to Finite" if isinstance(domain, Finite) else "Widen the domain"
        raise ValueError(
            f"{where}: {np.sum(~inside)} of {len(inside)} contexts lie outside {domain!r}, first in row {first} "
            f"({np.asarray(xi[first])}). {hint}, or drop these rows."
        )


def _arguments(problem: Problem, level: Level) -> tuple:
    """``x, y, xi, eta`` of one sample."""
    row = level.example()
    return problem.x0, problem.y0, *jax.tree.map(lambda a: np.asarray(a)[0], (row.xi, row.eta))


def as_of_now(problem: Problem, upper: Level, lower: Level, twice: bool = True) -> Problem:
    """The problem with its functions traced: what they say now, whatever changes later."""
    draw, taken = problem.conditional, second_derivatives if twice else first_derivatives
    if draw is not None:
        if isinstance(problem.domain, Mixed) and not isinstance(draw, Sampler):
            draw = Unpacked(draw, problem.domain, 1)
        draw = Sampler(draw, as_key(0), _arguments(problem, lower)[2])
    return replace(
        problem,
        upper=_objective_as_of_now(problem, "upper", upper, first_derivatives),
        lower=_objective_as_of_now(problem, "lower", lower, taken),
        conditional=draw,
    )


def _objective_as_of_now(problem: Problem, name: str, level: Level, derivatives: Callable) -> Traced:
    """An objective traced; raises where it fails on one sample, or does not return a float."""
    function, args, call = getattr(problem, name), _arguments(problem, level), f"{name}(x, y, xi, eta)"
    if isinstance(problem.domain, Mixed) and not isinstance(function, Traced):  # what is traced has been unpacked
        function = Unpacked(function, problem.domain)
    try:
        found = trace_objective(function, args, derivatives)
    except Exception as error:
        seen = (*args[:2], problem.domain.unpack(args[2]), args[3])
        shapes = jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", seen)
        raise failure(call, error, f"fails on one sample with x, y, xi, eta = {shapes}") from error
    out = found.program.out
    if getattr(out, "shape", None) != ():
        shape = getattr(out, "shape", type(out).__name__)
        raise ValueError(
            f"{call} must return a scalar for one sample, got {shape}. Sum or average inside it; the library "
            "averages over samples."
        )
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise TypeError(f"{call} must return a float, got dtype {out.dtype}.")
    try:
        check_derivatives(found, derivatives)
    except Exception as error:
        order = "twice" if derivatives is second_derivatives else "once"
        raise failure(call, error, f"cannot be differentiated {order}") from error
    return found


def _depends_on_noise(problem: Problem, level: Level) -> bool:
    """Whether ``g``, traced, depends on ``eta``: by the user's word (checked when ``False``), else by its program."""
    if problem.lower_noise is True:
        return True
    found = problem.lower.uses_last_argument()
    if found and problem.lower_noise is False:
        _check_noise_free(problem, level)
    return found and problem.lower_noise is None


def _check_noise_free(problem: Problem, level: Level) -> None:
    """Compares how ``g`` changes between two values of ``y`` under one noise and under another's; raises if it differs.

    A term of ``eta`` alone drops out of the change, as it does out of the minimiser.
    """
    rows = level.example(CHECK_ROWS)
    swapped = put(jax.tree.map(lambda a: np.roll(np.asarray(a), 1, axis=0), rows.eta))

    @jax.vmap
    def changes(key, xi, eta, other):
        # not y0 itself, where a term such as eta * y^2 would hide
        nudge = lambda a, k: a + (1 + jnp.abs(a)) * jax.random.normal(k, a.shape, a.dtype)
        ys = [jax.tree.map(lambda a, k=k: nudge(a, k), problem.y0) for k in jax.random.split(key)]
        values = jnp.stack([jnp.stack([problem.lower(problem.x0, y, xi, e) for y in ys]) for e in (eta, other)])
        return values[:, 1] - values[:, 0], jnp.max(jnp.abs(values))

    @jax.jit
    def found(*columns):
        change, size = changes(jax.random.split(jax.random.key(0), len(rows)), *columns)
        return jnp.max(jnp.abs(change[:, 0] - change[:, 1])), jnp.max(size)

    largest, size = found(rows.xi, rows.eta, swapped)
    gap, scale, eps = float(largest), float(size), jnp.finfo(size.dtype).eps
    if gap > 1e3 * eps * (scale + eps):
        raise ValueError(
            f"lower_noise=False, but the change of lower between two values of y differs by {gap:.3g} when eta is "
            "swapped between samples. Leave lower_noise at None, or remove eta from lower."
        )
