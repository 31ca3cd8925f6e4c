r"""A problem with constraints on ``y`` as one without: equalities eliminated, inequalities as a barrier.

With $A y = b(x, \xi)$, the unknown is $u$ in $y = A^+ b + Z u$, where the columns of $Z$ are orthonormal and span
$A y = 0$: the equalities hold whatever $u$ is, and distances in $u$ are distances in $y$. Everything after the study
works on $u$; a solution turns it back into ``y``.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..functions import Traced, failure, first_derivatives, second_derivatives, trace_objective
from ..keys import as_key
from ..problem import Bounds, Constraint, Level, Problem, Samples, Unpacked
from ..trees import shaped_like
from .smoothing import SHARE, UNIT_ROWS, Smoothing, scales_at, smoothing_from

_CHECKED = 1024  # contexts at which equalities are checked for contradictions
_RANK = 1e-10  # singular values, relative to the largest, that count as zero
_CONTRADICTS = 1e-6  # of the size of b: what no y can meet


class Form(eqx.Module):
    """``y`` from the unknown that is left: ``inverse @ b(x, xi) + null @ u`` with equalities, ``u`` itself without."""

    inverse: Float[Array, "dy m"] | None
    null: Float[Array, "dy k"] | None
    right: Callable | None
    like: PyTree[Array]
    matrix: Float[np.ndarray, "m dy"] | None = None

    def y(self, x: PyTree, u: PyTree, xi: Any) -> PyTree:
        """At one context."""
        if self.null is None or self.inverse is None or self.right is None:
            return u
        right = jnp.asarray(self.right(x, xi), u.dtype)
        return shaped_like(self.like, self.inverse.astype(u.dtype) @ right + self.null.astype(u.dtype) @ u)

    def along(self, x: PyTree, u: PyTree, xi: Array, depth: int) -> PyTree:
        """At many contexts, the last `depth` axes of ``xi`` being those of one."""
        if self.null is None:
            return u
        lead = xi.shape[: xi.ndim - depth]
        rows = jax.vmap(lambda one, context: self.y(x, one, context))(
            u.reshape(-1, u.shape[-1]), xi.reshape(-1, *xi.shape[xi.ndim - depth :])
        )
        return jax.tree.map(lambda a: a.reshape(*lead, *a.shape[1:]), rows)

    def enter(self, y: PyTree) -> PyTree:
        """The unknown nearest to a given ``y``."""
        return y if self.null is None else self.null.T @ ravel_pytree(y)[0]


class Stated(eqx.Module):
    """A user's objective as a function of the unknown."""

    function: Callable
    form: Form

    def __call__(self, x: PyTree, u: PyTree, xi: Any, eta: PyTree) -> Array:
        return self.function(x, self.form.y(x, u, xi), xi, eta)


class Slacks(eqx.Module):
    """All slacks of a problem as a function of the unknown."""

    constraints: tuple[Constraint, ...]
    form: Form

    def __call__(self, x: PyTree, u: PyTree, xi: Any) -> Float[Array, " m"]:
        y = self.form.y(x, u, xi)
        found = [one.slack(x, y, xi) for one in self.constraints]
        some = [part for part in found if part is not None]
        return jnp.concatenate(some) if some else jnp.zeros(0, ravel_pytree(u)[0].dtype)


class Smoothed(eqx.Module):
    """The lower objective with the barrier of the inequalities."""

    lower: Traced
    slacks: Traced
    smoothing: Smoothing

    def __call__(self, x: PyTree, u: PyTree, xi: Any, eta: PyTree) -> Array:
        return self.lower.in_place(x, u, xi, eta) + self.smoothing.barrier(self.slacks.in_place(x, u, xi, eta))


class Constrained(eqx.Module):
    """What a solution needs of the constraints, as they are now: how ``y`` follows, the slacks, the barrier.

    `slacks` and `lower`, the objective without the barrier, are functions of ``x``, the unknown, context and noise.
    """

    form: Form
    slacks: Traced
    smoothing: Smoothing | None
    lower: Traced
    names: tuple[str, ...] = eqx.field(static=True)
    statement: tuple[str, ...] = eqx.field(static=True)
    settled: bool = eqx.field(static=True)  # whether the barrier is that of a run, rather than a first guess

    def smoothed(self, smoothing: Smoothing, example: tuple) -> tuple["Constrained", Traced]:
        """The same with another barrier, and the lower objective with it, traced for arguments like `example`."""
        whole = Smoothed(self.lower, self.slacks, smoothing)
        return replace(self, smoothing=smoothing, settled=True), trace_objective(whole, example, second_derivatives)


def form_of(problem: Problem) -> Form:
    """How ``y`` follows from the unknown, for a problem without data at hand."""
    form = _form(problem)
    if form.right is None:
        return form
    right, middle = form.right, some_context(problem)
    args, stated = (problem.x0, None, middle, None), Unpacked(lambda x, u, xi, eta: right(x, xi), problem.domain)
    return replace(form, right=_Right(trace_objective(stated, args, first_derivatives)))


def standard_form(problem: Problem, upper: Level, level: Level) -> tuple[Problem, Constrained]:
    """The problem in its unknown, without constraints, its objectives traced; raises where constraints contradict each
    other at some context. `level` is what the lower level sees."""
    rows = level.example(_CHECKED) if level.endless else level.contexts()
    form = _form(problem)
    _check_consistent(problem, form, rows)
    free = replace(problem, y0=form.enter(problem.y0), constraints=(), smoothing=None)
    example = level.example(min(_CHECKED, level.count or _CHECKED))
    slacks, names = Slacks(problem.constraints, form), _slack_names(problem, np.asarray(example.xi)[0])
    first = lambda rows: (problem.x0, free.y0, *jax.tree.map(lambda a: np.asarray(a)[0], (rows.xi, rows.eta)))
    trace = lambda function, rows: trace_objective(Unpacked(function, problem.domain), first(rows), first_derivatives)
    _check_bounds_known(problem, example)
    seen = trace(lambda x, u, xi, eta: slacks(x, u, xi), example)
    objective = trace(Stated(problem.lower, form), example)
    smoothing = problem.smoothing if names else None
    if names and not isinstance(smoothing, Smoothing):
        share = SHARE if smoothing is None else float(smoothing)
        some = level.look(as_key(0), UNIT_ROWS).samples.rows(slice(0, UNIT_ROWS))
        smoothing = smoothing_from(scales_at(objective, seen, free, some, None), names, share)
    traced_upper, right = trace(Stated(problem.upper, form), upper.example()), form.right
    if right is not None:
        form = replace(form, right=_Right(trace(lambda x, u, xi, eta: right(x, xi), example)))
    settled = isinstance(problem.smoothing, Smoothing)
    said = statement_of(problem)
    constrained, lower = Constrained(form, seen, smoothing, objective, tuple(names), said, settled), objective
    if smoothing is not None:
        lower = constrained.smoothed(smoothing, first(example))[1]
    return replace(free, upper=traced_upper, lower=lower), constrained


class _Right(eqx.Module):
    """Right-hand sides as they were when traced; the unknown and the noise take no part."""

    traced: Traced

    def __call__(self, x: PyTree, xi: Any) -> Array:
        shapes = self.traced.program.shapes
        unused = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), self.traced.program.structure.unflatten(shapes))
        return self.traced(x, unused[1], xi, unused[3])


def _form(problem: Problem) -> Form:
    """How ``y`` follows from what the equalities leave free."""
    stated = [one.equalities(problem.y0) for one in problem.constraints]
    parts = [part for part in stated if part is not None]
    if not parts:
        return Form(None, None, None, problem.y0)
    A = np.concatenate([matrix for matrix, _ in parts])
    right = lambda x, xi: jnp.concatenate([jnp.asarray(b(x, xi)) for _, b in parts])
    left, sizes, rows_of = np.linalg.svd(A)
    rank = int(np.sum(sizes > _RANK * sizes[0])) if len(sizes) else 0
    dy = A.shape[1]
    if rank == dy:
        raise ValueError(
            f"constraints: {rank} independent equalities leave nothing of the {dy} numbers of y to choose. Drop some, "
            "or take y out of the problem."
        )
    inverse = (rows_of[:rank].T / sizes[:rank]) @ left[:, :rank].T
    dtype = jax.tree.leaves(problem.y0)[0].dtype
    return Form(jnp.asarray(inverse, dtype), jnp.asarray(rows_of[rank:].T, dtype), right, problem.y0, A)


def _check_consistent(problem: Problem, form: Form, rows: Samples) -> None:
    """Raises where equalities contradict each other, or have no value."""
    right = form.right
    if right is None:
        return
    A: Any = form.matrix
    xi = rows.xi[:_CHECKED]
    values = np.asarray(
        jax.vmap(lambda context: right(problem.x0, problem.domain.unpack(context)))(jnp.asarray(xi)), float
    )
    missed = values - values @ (A @ np.asarray(form.inverse, float)).T
    bad = ~np.isfinite(values).all(axis=1)
    bad |= np.abs(missed).max(axis=1) > _CONTRADICTS * (1e-300 + np.abs(values).max(axis=1))
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            f"constraints: the equalities contradict each other, or b is not finite, at {int(bad.sum())} of "
            f"{len(bad)} contexts, first at xi = {np.asarray(xi)[first]}, where b(x0, xi) = {values[first]}. Drop "
            "dependent rows of A, or make b agree."
        )


def _check_bounds_known(problem: Problem, rows: Samples) -> None:
    """Raises where bounds that are functions of the context are NaN: the lower objective would be blamed for it."""
    for place, one in enumerate(problem.constraints):
        if not isinstance(one, Bounds) or not (callable(one.lo) or callable(one.hi)):
            continue
        slack = lambda xi, one=one: one.slack(problem.x0, problem.y0, problem.domain.unpack(xi))
        bad: Any = np.isnan(np.asarray(jax.vmap(slack)(jnp.asarray(rows.xi)), float)).any(axis=1)
        if bad.any():
            first = np.asarray(rows.xi)[int(np.argmax(bad))]
            raise ValueError(
                f"constraints[{place}] (Bounds): a bound is NaN at {int(bad.sum())} of {len(bad)} contexts, first at "
                f"xi = {first}. Check the functions lo(xi) and hi(xi); where there is no bound, return -inf or inf."
            )


def statement_of(problem: Problem) -> tuple[str, ...]:
    """The constraints in words, those that differ in other words: inequalities by name, equalities by their numbers."""
    if not problem.constraints:
        return ()
    xi = np.asarray(some_context(problem))
    form, stated = _form(problem), tuple(_slack_names(problem, xi))
    if form.right is None:
        return stated
    b = np.asarray(form.right(problem.x0, problem.domain.unpack(jnp.asarray(xi))), float)
    particular = np.asarray(form.inverse, float) @ b
    numbers = lambda array: " ".join(f"{value:.6g}" for value in np.ravel(array) + 0.0)
    return (*stated, f"equalities leaving y = {numbers(particular)} at x0 and {xi}, projector {_projector(form)}")


def _projector(form: Form) -> str:
    """A digest of what the equalities leave free, whatever basis that is written in."""
    null = np.asarray(form.null, float)
    rounded = np.round(null @ null.T, 6) + 0.0
    return hashlib.sha256(np.ascontiguousarray(rounded).tobytes()).hexdigest()[:12]


def some_context(problem: Problem) -> Array:
    """The middle of the domain."""
    return problem.domain.place(jnp.zeros(problem.domain.dimension))


def _slack_names(problem: Problem, xi: Any) -> list[str]:
    """All slacks in words; raises where a constraint fails on one context."""
    found = []
    y = problem.y0
    for place, one in enumerate(problem.constraints):
        try:
            slack = lambda x, y, xi, one=one: one.slack(x, y, problem.domain.unpack(xi))
            shape = eqx.filter_eval_shape(slack, problem.x0, y, xi)
        except Exception as error:
            raise failure(f"constraints[{place}] ({type(one).__name__})", error, "fails on one context") from error
        if shape is not None:
            named = one.names(y, shape.shape[0])
            found += [f"constraints[{place}]: {name}" if name.startswith("h(") else name for name in named]
    return found
