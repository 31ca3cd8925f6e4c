r"""A problem with constraints on ``y`` as one without: equalities eliminated, inequalities as a barrier.

With $A y = b(x, \xi)$, the unknown is $u$ in $y = A^+ b + Z u$, where the columns of $Z$ are orthonormal and span
$A y = 0$: the equalities hold whatever $u$ is, and distances in $u$ are distances in $y$. Everything after the study
works on $u$; a solution turns it back into ``y``.

In place of slacks $s_i \ge 0$ the lower level gets $t \sum_i \varphi(s_i)$, with $\varphi(s) = -\log s$ down to a
floor $\delta$ and the parabola that continues it below. The minimiser is then smooth in ``x`` and the context, and
where its slacks stay above the floor its objective is within $m t$ of the constrained one ($m$ slacks). Below the floor
nothing breaks: any start is allowed, and any solver. The weight $t$, the floor and the width over which a corner is
rounded off follow from one length, which ``lower.constraints`` measures at a policy.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..functions import Traced, depends_on, failure, first_derivatives, second_derivatives, trace_objective
from ..ground import as_key, double, in_double, shaped_like
from ..problem import CHECK_ROWS, LOOK_ROWS, Bounds, Level, Problem, Samples, Unpacked, entry_names

_SHARE = 1e-4  # the weight, where none is asked for, in units of curvature times squared distance
SOFT_SHARE = 1e-2  # the same where no few samples may carry the barrier: for batches, to test, and to measure noise
UNIT_ROWS = 128  # samples from which units are taken
_STRONGER = 2  # times what is typical: forces that the barrier withstands above its floor
_NOTHING = 1e-6  # of a size: how far a policy may move, or equalities miss, and count as not


class Smoothing(eqx.Module):
    """The barrier's numbers.

    - `weight`: $t$, in units of the lower objective; `share`: the same in units of its own curvature times the squared
      distance over which ``y`` moves, so that it has no units.
    - `units`: by how much each slack changes over a unit of ``y``; `floor`: $\\delta$ of each, in units of ``y``.
    - `width`: the slack, in units of ``y``, below which a constraint counts as active: about the distance over which
      the barrier rounds off a corner of the policy.
    """

    weight: Any
    floor: Any
    units: Any
    width: Any
    share: Any

    def barrier(self, slack: Float[Array, " m"]) -> Float[Array, ""]:
        """The barrier at these slacks, zero where each is at the floor."""
        broad = jnp.finfo(slack.dtype).max ** 0.5  # slacks may be infinite, where there is no bound
        s = jnp.minimum(slack / self.units.astype(slack.dtype), broad) / jnp.asarray(self.floor, slack.dtype)
        inside = s > 1
        below = jnp.where(inside, 0, s - 1)
        terms = jnp.where(inside, -jnp.log(jnp.where(inside, s, 1)), below * (below / 2 - 1))
        return jnp.asarray(self.weight, slack.dtype) * jnp.sum(terms)

    def to_json(self) -> dict[str, Any]:
        """As plain numbers."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items()}

    @staticmethod
    def from_json(entry: dict[str, Any]) -> "Smoothing":
        """The inverse of ``to_json``."""
        return Smoothing(**{name: np.asarray(value, float) for name, value in entry.items()})

    @property
    def price(self) -> float:
        """By how much the lower objective may lie above the constrained minimum, at most."""
        return float(self.weight) * len(self.units)

    def sharper(self, factor: float) -> "Smoothing":
        """The same barrier with its weight divided by a factor."""
        weight, floor, width = self.weight / factor, self.floor / factor, self.width / factor**0.5
        return replace(self, weight=weight, floor=floor, width=width, share=self.share / factor)


class BarrierScales(eqx.Module):
    """What a barrier is measured by, at some samples: their slacks; of each slack the mean square of its slope, and of
    the objective's slope along it; the objective's mean curvature; how far ``y`` lies from its mean, coordinate by
    coordinate. At a given ``y`` that is not too large also, at each, the Hessian of the objective, and that of minus
    the sum of the slacks, in their units: 0 for those that are linear."""

    slack: Float[Array, "n m"]
    change: Float[Array, " m"]
    pressed: Float[Array, " m"]
    curvature: Float[Array, ""]
    spread: Float[Array, ""]
    hessian: Float[Array, "n k k"] | None = None
    bent: Float[Array, "n k k"] | None = None


def scales_at(lower: Any, slack: Any, problem: Problem, rows: Samples, y: Any) -> BarrierScales:
    """At a ``y`` for each sample, flattened; without one, where a step down the slope from ``y0`` leads, of the length
    that the mean curvature suggests."""
    return _scales_at(lower, slack, problem.x0, problem.y0, rows, y)  # not its functions, which may be made anew


@eqx.filter_jit
def _scales_at(lower: Any, slack: Any, x0: PyTree, y0: PyTree, rows: Samples, y: Any) -> BarrierScales:
    flat, unravel = ravel_pytree(y0)
    size = len(flat)
    directions = size**0.5 * jnp.eye(size, dtype=flat.dtype)  # means of squares along these are exact
    if size > CHECK_ROWS:  # along some at random
        directions = jax.random.normal(jax.random.key(0), (CHECK_ROWS, size), flat.dtype)
    objective = lambda z, xi, eta: lower(x0, unravel(z), xi, eta)
    slopes = jax.vmap(jax.grad(objective))

    def images(function, z):  # of the directions, by the Hessian
        return jax.vmap(lambda v: jax.jvp(jax.grad(function), (z,), (v,))[1])(directions)

    curved = jax.vmap(lambda z, xi, eta: images(lambda w: objective(w, xi, eta), z))
    mean_curvature = lambda found: jnp.mean(jnp.sum(found * directions, axis=-1)) / size
    given = y is not None and size <= CHECK_ROWS
    if y is None:
        start = jnp.broadcast_to(flat, (len(rows), size))
        first = mean_curvature(curved(start, rows.xi, rows.eta))
        y = start - jnp.where(first > 0, slopes(start, rows.xi, rows.eta) / jnp.where(first > 0, first, 1), 0)

    def of_slack(z, slope, xi, eta):
        h = lambda w: slack(x0, unravel(w), xi, eta)
        change = jax.vmap(lambda v: jax.jvp(h, (z,), (v,))[1])(directions)
        size = jnp.mean(change**2, axis=0)
        total = lambda w: -jnp.sum(h(w) / jnp.sqrt(jnp.where(size > 0, size, 1)))
        return h(z), size, jax.jvp(h, (z,), (slope,))[1] ** 2, images(total, z) if given else None

    here, change, pressed, bent = jax.vmap(of_slack)(y, slopes(y, rows.xi, rows.eta), rows.xi, rows.eta)
    spread = jnp.sqrt(jnp.mean((y - jnp.mean(y, axis=0)) ** 2))
    mean, found = lambda table: jnp.mean(table, axis=0), curved(y, rows.xi, rows.eta)
    matrices = (found / size**0.5, bent / size**0.5) if given else (None, None)
    return BarrierScales(here, mean(change), mean(pressed), mean_curvature(found), spread, *matrices)


def smoothing_from(found: BarrierScales, names: Sequence[str], share: float, length: float | None = None) -> Smoothing:
    """The barrier in these units; `length` in place of the spread of ``y``.

    The length is how far the policy varies; where it does not, how far it is from its constraints. Forces are the
    objective's slope along each constraint, and its curvature over that length.
    """
    change, pressed, slack = (np.asarray(part, float) for part in (found.change, found.pressed, found.slack))
    units = np.sqrt(change)
    for k, name in enumerate(names):
        if not np.isfinite(units[k]) or units[k] <= 0 or np.isnan(slack[:, k]).all():
            raise ValueError(
                f"constraints: {name} does not change with y near the start, or gives NaN there, so no choice of y "
                "can meet it. Check its function, or start from another y0."
            )
    curvature = max(float(found.curvature), 0.0)
    length = length_of(found) if length is None else length
    stiff = curvature * length**2 or length * float(np.sqrt(np.max(pressed / change))) or 1.0
    strength = _STRONGER * (np.sqrt(pressed) / units + stiff / length)
    weight, width = share * stiff, float(np.sqrt(share)) * length
    return Smoothing(np.asarray(weight), weight / strength, units, np.asarray(width), np.asarray(share))


def length_of(found: BarrierScales) -> float:
    """How far the policy varies; where it does not, how far it could move; else 1.

    That is how far it is from its constraints or, where it lies at one, how far the objective presses on: at most to
    the next constraint. Where one binds at every context, neither the policy nor its distance says how wide it is.
    """
    spread, change, curvature = (np.asarray(part, float) for part in (found.spread, found.change, found.curvature))
    gaps = np.sort(np.abs(np.asarray(found.slack, float) / np.sqrt(change)), axis=1)
    nearest, next_one = gaps[:, 0], gaps[:, 1] if gaps.shape[1] > 1 else np.inf
    pressed = np.sqrt(np.max(np.asarray(found.pressed, float) / change))
    room = np.maximum(nearest, np.minimum(next_one, pressed / curvature if curvature > 0 else np.inf))
    room = room[np.isfinite(room)]
    typical = float(np.median(room)) if room.size else 0.0
    return (float(spread) if spread > _NOTHING * typical else typical) or 1.0


class Same(eqx.Module):
    """Right-hand sides that are the same at every decision and context: numbers, which can be copied."""

    value: Float[np.ndarray, " m"]

    def __call__(self, x: PyTree, u: PyTree, xi: Any, eta: PyTree) -> Float[np.ndarray, " m"]:
        return self.value


class Form(eqx.Module):
    """``y`` from the unknown that is left: ``inverse @ b(x, xi) + null @ u`` with equalities, ``u`` itself without.

    `stated` is ``b`` as a function of ``x, u, xi, eta``, of which ``x`` and ``xi`` alone take part; `in_single`: the
    same for a policy within a program of the caller's, who has JAX in single precision.
    """

    inverse: Float[np.ndarray, "dy m"] | None
    null: Float[np.ndarray, "dy k"] | None
    stated: Callable | None
    like: PyTree[Array]
    matrix: Float[np.ndarray, "m dy"] | None = None
    in_single: Callable | None = None

    def right(self, x: PyTree, xi: Any) -> Array:
        """The right-hand sides at one context."""
        stated = self.stated if self.in_single is None or in_double() else self.in_single
        assert stated is not None
        return stated(x, None, xi, None)

    def y(self, x: PyTree, u: PyTree, xi: Any) -> PyTree:
        """At one context."""
        if self.null is None or self.inverse is None:
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

    def as_of_now(self, problem: Problem, xi: Any) -> "Form":
        """With ``b`` traced, for contexts like `xi` as the library keeps them."""
        if self.stated is None:
            return self
        whole = Unpacked(self.stated, problem.domain), (problem.x0, None, xi, None)
        now = trace_objective(*whole, first_derivatives)
        if not any(depends_on(now.program.body, slice(-len(now.program.shapes), None))):
            return replace(self, stated=Same(np.asarray(now(*whole[1]))))
        if not in_double():
            return replace(self, stated=now)
        wide = lambda a: getattr(a, "dtype", None) == np.float64
        with double(False):
            halved = jax.tree.map(lambda a: np.asarray(a, np.float32) if wide(a) else a, whole)
            in_single = trace_objective(*halved, first_derivatives)
        return replace(self, stated=now, in_single=in_single)


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
        whole = lambda *args: self.lower.in_place(*args) + smoothing.barrier(self.slacks.in_place(*args))
        return replace(self, smoothing=smoothing, settled=True), trace_objective(whole, example, second_derivatives)


def form_of(problem: Problem) -> Form:
    """How ``y`` follows from the unknown, for a problem without data at hand."""
    return _form(problem).as_of_now(problem, some_context(problem))


def standard_form(problem: Problem, upper: Level, level: Level) -> tuple[Problem, Constrained]:
    """The problem in its unknown, without constraints, its objectives traced; raises where constraints contradict each
    other at some context. `level` is what the lower level sees."""
    form, domain = _form(problem), problem.domain
    example = level.example(min(LOOK_ROWS, level.count or LOOK_ROWS))
    _check_consistent(problem, form, (example if level.endless else level.contexts()).xi[:LOOK_ROWS])
    _check_bounds(problem, example.xi)
    free = replace(problem, y0=form.enter(problem.y0), constraints=(), smoothing=None)
    names = _slack_names(problem, np.asarray(example.xi)[0])
    first = lambda rows: (problem.x0, free.y0, *jax.tree.map(lambda a: np.asarray(a)[0], (rows.xi, rows.eta)))
    trace = lambda function, rows: trace_objective(Unpacked(function, domain), first(rows), first_derivatives)
    in_unknown = lambda function: lambda x, u, xi, eta: function(x, form.y(x, u, xi), xi, eta)

    def slacks(x: PyTree, y: PyTree, xi: Any, eta: PyTree) -> Array:
        found = [one.slack(x, y, xi) for one in problem.constraints]
        return jnp.concatenate([jnp.zeros(0, ravel_pytree(y)[0].dtype), *(part for part in found if part is not None)])

    seen, objective = trace(in_unknown(slacks), example), trace(in_unknown(problem.lower), example)
    smoothing = problem.smoothing if names else None
    settled = isinstance(problem.smoothing, Smoothing)
    if names and not settled:
        some = level.look(as_key(0), UNIT_ROWS).samples.rows(slice(0, UNIT_ROWS))
        share = _SHARE if smoothing is None else float(smoothing)
        smoothing = smoothing_from(scales_at(objective, seen, free, some, None), names, share)
    traced_upper = trace(in_unknown(problem.upper), upper.example())
    now = form.as_of_now(problem, np.asarray(example.xi)[0])
    constrained = Constrained(now, seen, smoothing, objective, tuple(names), statement_of(problem), settled)
    lower = objective if smoothing is None else constrained.smoothed(smoothing, first(example))[1]
    return replace(free, upper=traced_upper, lower=lower), constrained


def _form(problem: Problem) -> Form:
    """How ``y`` follows from what the equalities leave free."""
    stated = [one.equalities(problem.y0) for one in problem.constraints]
    parts = [part for part in stated if part is not None]
    if not parts:
        return Form(None, None, None, problem.y0)
    A = np.concatenate([matrix for matrix, _ in parts])
    right = lambda x, u, xi, eta: jnp.concatenate([jnp.asarray(b(x, xi)) for _, b in parts])
    left, sizes, rows_of = np.linalg.svd(A)
    rank, dy = int(np.sum(sizes > np.finfo(float).eps ** (2 / 3) * sizes[0])), A.shape[1]
    if rank == dy:
        raise ValueError(
            f"constraints: {rank} independent equalities determine all {dy} numbers of y. Drop some, "
            "or remove y from the problem."
        )
    inverse = (rows_of[:rank].T / sizes[:rank]) @ left[:, :rank].T
    dtype = jax.tree.leaves(problem.y0)[0].dtype
    return Form(inverse.astype(dtype), rows_of[rank:].T.astype(dtype), right, problem.y0, A)


def _check_consistent(problem: Problem, form: Form, xi: Any) -> None:
    """Raises where equalities contradict each other, or have no value."""
    if form.stated is None:
        return
    A = form.matrix
    right = lambda context: form.right(problem.x0, problem.domain.unpack(context))
    values = np.asarray(jax.vmap(right)(jnp.asarray(xi)), float)
    missed = values - values @ (A @ np.asarray(form.inverse, float)).T
    met = np.abs(missed).max(axis=1) <= _NOTHING * (np.finfo(float).tiny + np.abs(values).max(axis=1))  # NaN is not
    if not met.all():
        first = int(np.argmin(met))
        raise ValueError(
            f"constraints: the equalities contradict each other, or b is not finite, at {int(np.sum(~met))} of "
            f"{len(met)} contexts, first at xi = {np.asarray(xi)[first]}, where b(x0, xi) = {values[first]}. Drop "
            "dependent rows of A, or make b agree."
        )


def _check_bounds(problem: Problem, xi: Any) -> None:
    """Raises where bounds are NaN at a context, or cross there: the lower objective would be blamed for the one, and no
    decision helps with the other."""
    for place, one in enumerate(problem.constraints):
        if not isinstance(one, Bounds):
            continue
        try:
            ends = jax.vmap(lambda xi, one=one: one.ends(problem.y0, problem.domain.unpack(xi)))(jnp.asarray(xi))
        except Exception as error:
            raise failure(f"constraints[{place}] (Bounds)", error, "fails on one context") from error
        lo, hi = (np.asarray(end, float) for end in ends)
        unknown = np.isnan(lo) | np.isnan(hi)
        bad = unknown if unknown.any() else lo > hi
        if not bad.any():
            continue
        row = int(np.argmax(bad.any(axis=1)))
        where = f"at {int(bad.any(axis=1).sum())} of {len(bad)} contexts, first at xi = {np.asarray(xi)[row]}"
        if unknown.any():
            raise ValueError(
                f"constraints[{place}] (Bounds): a bound is NaN {where}. Check the functions lo(xi) and hi(xi); where "
                "there is no bound, return -inf or inf."
            )
        entry = int(np.argmax(bad[row]))
        name = entry_names(problem.y0)[entry]
        raise ValueError(
            f"constraints[{place}] (Bounds): lo lies above hi {where}, where {name} must lie between "
            f"{lo[row, entry]:.6g} and {hi[row, entry]:.6g}. Swap them, or drop these contexts."
        )


def statement_of(problem: Problem) -> tuple[str, ...]:
    """The constraints in words, those that differ in other words: inequalities by name, equalities by their numbers."""
    if not problem.constraints:
        return ()
    xi = np.asarray(some_context(problem))
    form, stated = _form(problem), tuple(_slack_names(problem, xi))
    if form.stated is None:
        return stated
    b = np.asarray(form.right(problem.x0, problem.domain.unpack(jnp.asarray(xi))), float)
    numbers = " ".join(f"{value:.6g}" for value in np.asarray(form.inverse, float) @ b + 0.0)
    null = np.asarray(form.null, float)
    projector = np.ascontiguousarray(np.round(null @ null.T, 6) + 0.0)  # whatever basis the null space is written in
    digest = hashlib.sha256(projector.tobytes()).hexdigest()[:12]
    return (*stated, f"equalities leaving y = {numbers} at x0 and {xi}, projector {digest}")


def some_context(problem: Problem) -> Array:
    """The middle of the domain."""
    return problem.domain.place(jnp.zeros(problem.domain.dimension))


def _slack_names(problem: Problem, xi: Any) -> list[str]:
    """All slacks in words; raises where a constraint fails on one context."""
    found = []
    for place, one in enumerate(problem.constraints):
        try:
            slack = lambda x, y, xi, one=one: one.slack(x, y, problem.domain.unpack(xi))
            shape = eqx.filter_eval_shape(slack, problem.x0, problem.y0, xi)
        except Exception as error:
            raise failure(f"constraints[{place}] ({type(one).__name__})", error, "fails on one context") from error
        named = [] if shape is None else one.names(problem.y0, shape.shape[0])
        found += [f"constraints[{place}]: {name}" if name.startswith("h(") else name for name in named]
    return found
