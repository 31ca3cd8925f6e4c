"""Inequalities on ``y``: a barrier that fits the policy, and how far a policy meets them, or could."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from ..basis import combine
from ..ground import Held, as_key, as_rows, flattened, generator
from ..problem import Domain, Finite, Interval
from ..study import UNIT_ROWS, Constrained, Study, length_of, scales_at, smoothing_from
from .corners import Slacks, policy_with_corners
from .damped_newton import minimise
from .per_context import Means

_MEASURINGS = 8  # of solving and measuring the barrier anew, at most
_SAME_LENGTH = 1.5  # ratio of two lengths that counts as none
_LARGEST_CHANGE = 100.0  # of the length in one round
_FRESH = 1000  # contexts between the observed ones
_MEASURED_ROWS = 20_000  # samples at which violations are measured, at most
_CONTRADICTION = 1e-6  # of the size of b: what no y can meet
_FULL_CHECK = 200  # contexts at which it is asked whether the constraints can be met at all


@dataclass(frozen=True)
class Violation:
    """One inequality: its violation at the samples and at fresh contexts, and where it is active.

    Violations are in the constraint's own units: how far its slack is below zero, 0 if it is met. `active`: the share
    of samples at which it is active; `where`: between which contexts, if these are scalars, else ``None``; `worst`: the
    sample's context at which it is violated most, ``None`` if it is met at all.
    """

    name: str
    largest: float
    mean: float
    largest_fresh: float
    mean_fresh: float
    active: float
    where: tuple[float, float] | None = None
    worst: Any = None


@dataclass(frozen=True)
class Feasibility:
    """How far the policy meets the inequalities; equalities are met by construction.

    - `largest`, `mean`: violations at the samples, over all inequalities, in units of ``y``; `largest_fresh`,
      `mean_fresh`: at fresh contexts between them.
    - `price`: an upper bound on how far smoothing lifts the lower objective of an exact policy above the constrained
      minimum. `equalities`: how many equalities were eliminated.
    """

    equalities: int
    largest: float
    mean: float
    largest_fresh: float
    mean_fresh: float
    price: float
    rows: tuple[Violation, ...] = ()

    def __repr__(self):
        return "\n  ".join(["Feasibility", *self.words()])

    @property
    def active(self) -> tuple[Violation, ...]:
        """The inequalities active at 1% of the samples or more, to the nearest percent, most often first."""
        return tuple(sorted((row for row in self.rows if round(100 * row.active) > 0), key=lambda row: -row.active))

    def words(self, listed: int = 5) -> list[str]:
        """Sentences for printing, with at most `listed` active inequalities named."""
        said = []
        if self.equalities:
            said.append(f"equalities: {self.equalities}, eliminated: the policy meets them everywhere, up to rounding.")
        if not self.rows:
            return said
        size = lambda largest, mean: f"violated by {largest:.2g} at most (mean {mean:.2g})" if largest > 0 else "met"
        said.append(
            f"constraints: {size(self.largest, self.mean)} at the samples, {size(self.largest_fresh, self.mean_fresh)} "
            f"at fresh contexts, in units of y; smoothing them costs the lower objective {self.price:.2g} at most."
        )
        ends = lambda row: "" if row.where is None else f" (xi from {row.where[0]:.3g} to {row.where[1]:.3g})"
        active = [f"{row.name} at {row.active:.0%} of samples{ends(row)}" for row in self.active]
        if active:
            more = f", and {len(active) - listed} more" if len(active) > listed else ""
            said.append(f"active: {'; '.join(active[:listed])}{more}.")
        return said

    @staticmethod
    def from_json(entry: dict[str, Any]) -> "Feasibility":
        """The inverse of ``dataclasses.asdict``, from a file."""
        ends = lambda row: None if row["where"] is None else tuple(row["where"])
        rows = tuple(Violation(**{**row, "where": ends(row)}) for row in entry["rows"])
        return Feasibility(**{**entry, "rows": rows})


def with_barrier(study: Study) -> Study:
    """The study with a barrier that fits it, if it has inequalities and no barrier of a run yet.

    Its length is how far the policy varies under the constraints. That takes a policy, and so a barrier, to begin with:
    both are found alternately, from the minima of the lower objective at single samples.
    """
    constrained = study.constrained
    if constrained is None or constrained.smoothing is None or constrained.settled:
        return study
    rows = study.lower.look(as_key(0), UNIT_ROWS).samples.rows(slice(0, UNIT_ROWS))
    smoothing, share = constrained.smoothing, float(constrained.smoothing.share)
    length = float(smoothing.width) / share**0.5
    x, y = flattened(study.problem.x0), np.tile(flattened(study.problem.y0), (len(rows), 1))
    for _ in range(_MEASURINGS):
        study = study.smoothed(smoothing)
        objective = Means(study.problem, np.asarray(rows.xi), rows.eta, np.ones((len(rows), 1))).objective(x)
        first = np.linalg.norm(objective.local(y)[1], axis=1)
        least = minimise(objective, y, study.eps**0.5 * first).point
        y = np.where(np.all(np.isfinite(least), axis=1, keepdims=True), least, y)
        scales = scales_at(constrained.lower, constrained.slacks, study.problem, rows, y.astype(study.dtype))
        before, length = length, np.clip(length_of(scales), length / _LARGEST_CHANGE, length * _LARGEST_CHANGE)
        smoothing = smoothing_from(scales, constrained.names, share, float(length))
        if 1 / _SAME_LENGTH < length / before < _SAME_LENGTH:
            break
    return study.smoothed(smoothing)


def _between(domain: Domain, xi: Shaped[Held, "n ..."]) -> Shaped[Held, "k ..."]:
    """Contexts between pairs of observed ones; for a finite domain, those observed."""
    rng = generator(jax.random.key(1))
    if isinstance(domain, Finite):
        return xi[rng.integers(len(xi), size=_FRESH)]
    u = np.asarray(domain.reference(xi))
    one, other = (u[rng.integers(len(u), size=_FRESH)] for _ in range(2))
    share = rng.uniform(size=one.shape)
    return domain.place((share * one + (1 - share) * other).astype(u.dtype))


def feasibility_of(study: Study, solution: Any) -> tuple[Feasibility | None, str]:
    """How far a policy, `solution` with its ``x``, ``W`` and ``basis``, meets the constraints; and, in words, where no
    policy can meet them, empty if one can."""
    constrained = study.constrained
    if constrained is None:
        return None, ""
    eliminated = 0 if constrained.form.inverse is None else constrained.form.inverse.shape[1]
    smoothing = constrained.smoothing
    missed = _equalities_missed(study, constrained, solution)
    if smoothing is None or missed:
        return Feasibility(eliminated, 0.0, 0.0, 0.0, 0.0, 0.0), missed
    rows = study.lower.example(_MEASURED_ROWS) if study.endless else study.lower.contexts()
    seen = np.asarray(rows.xi[:_MEASURED_ROWS])
    domain, units, width = study.problem.domain, np.asarray(smoothing.units), float(smoothing.width)
    policy = lambda xi: as_rows(combine(solution.basis.at(xi), solution.W))
    slacks = [Slacks(study, solution.x, xi).at(policy(xi))[0] for xi in (seen, np.asarray(_between(domain, seen)))]
    short = [np.maximum(-table, 0) for table in slacks]
    cornered = policy_with_corners(study, solution)
    binding = slacks[0] if cornered is None else Slacks(study, solution.x, seen).at(cornered(seen))[0]
    sizes = lambda here, fresh: {
        f"{what}{when}": float(measure(part))
        for when, part in (("", here), ("_fresh", fresh))
        for what, measure in (("largest", np.max), ("mean", np.mean))
    }

    def one(k: int, name: str) -> Violation:
        active, by = binding[:, k] / units[k] < width, short[0][:, k]
        some = np.asarray(seen, float)[active] if active.any() and isinstance(domain, Interval) else None
        return Violation(
            name=name,
            active=float(active.mean()),
            where=None if some is None else (float(some.min()), float(some.max())),
            worst=seen[int(np.argmax(by))].tolist() if by.max() > 0 else None,
            **sizes(*(table[:, k] for table in short)),
        )

    each = tuple(one(k, name) for k, name in enumerate(constrained.names))
    scaled = [table / units for table in short]
    record = Feasibility(equalities=eliminated, price=smoothing.price, rows=each, **sizes(*scaled))
    suspect = record.largest > width or not np.isfinite(record.largest)
    return record, _impossible_at(study, constrained, solution, seen, scaled[0]) if suspect else ""


def gave_way(study: Study, solution: Any, met: Feasibility) -> str:
    """Which inequality the lower objective pushes through, harder than its barrier can hold, in words.

    The strength of the barrier is set at ``x0``; an ``x`` that gains by it may push arbitrarily hard.
    """
    constrained = study.constrained
    if constrained is None or constrained.smoothing is None or not met.largest > float(constrained.smoothing.width):
        return ""
    smoothing, rows = constrained.smoothing, study.lower.look(as_key(0), UNIT_ROWS).samples.rows(slice(0, UNIT_ROWS))
    u = as_rows(combine(solution.basis.at(rows.xi), solution.W)).astype(study.dtype)
    scales = scales_at(constrained.lower, constrained.slacks, study.at(solution.x).problem, rows, u)
    force = np.sqrt(np.asarray(scales.pressed, float) / np.asarray(scales.change, float))
    strength, units = np.asarray(smoothing.weight / smoothing.floor, float), np.asarray(smoothing.units, float)
    by = np.array([row.mean for row in met.rows]) / units
    through = (force > strength) & (by > float(smoothing.width))
    if not through.any():
        return ""
    k = int(np.argmax(np.where(through, by, 0)))
    return f"({constrained.names[k]} is violated by {by[k]:.2g} on average.)"


def _equalities_missed(study: Study, constrained: Constrained, solution: Any) -> str:
    """Where equalities contradict each other at the decision found, in words; at ``x0`` they do not."""
    form = constrained.form
    if form.right is None or form.matrix is None or not study.lower.count:
        return ""
    xi = jnp.asarray(study.lower.contexts().xi[:_FULL_CHECK])
    b = np.asarray(jax.vmap(lambda one: form.right(solution.x, one))(xi), float)
    gap = np.abs(b - b @ (form.matrix @ np.asarray(form.inverse, float)).T).max(axis=1)
    bad = gap > _CONTRADICTION * (np.finfo(float).tiny + np.abs(b).max(axis=1))
    if not bad.any():
        return ""
    return f"(At xi = {np.asarray(xi)[int(np.argmax(bad))]} the equalities contradict each other, for this x.)"


def _impossible_at(study: Study, constrained: Constrained, solution: Any, xi: np.ndarray, short: np.ndarray) -> str:
    """Where no ``y`` meets the constraints, in words: of the contexts at which they are violated most."""
    smoothing: Any = constrained.smoothing
    worst = np.argsort(-short.max(axis=1))[:_FULL_CHECK]
    start = np.tile(flattened(study.problem.y0), (len(worst), 1))
    left = Slacks(study, solution.x, xi[worst]).least_violation(start, np.asarray(smoothing.units, float))
    lacking = np.nan_to_num(-left.min(axis=1))
    often, first = int(np.sum(lacking > float(smoothing.width) / 2)), int(np.argmax(lacking))
    if not often:
        return ""
    name = constrained.names[int(np.argmin(left[first]))]
    return (
        f"(At xi = {np.asarray(xi[worst[first]])} no y meets {name} together with the others: the violation, spread "
        f"over them, is at least {lacking[first]:.2g}. The constraints cannot be met at {often} of the {len(worst)} "
        "samples at which the policy violates them most.)"
    )
