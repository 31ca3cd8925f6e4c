"""``Feasibility``: how far a policy meets the constraints on ``y``, and what smoothing them has cost."""

from dataclasses import dataclass
from typing import Any

_RARELY = 0.005  # of the samples: less often, a constraint does not count as active
_LISTED_ACTIVE = 5  # constraints that are named when printed


@dataclass(frozen=True)
class Met:
    """One inequality: its violation at the samples and at fresh contexts, and where it is active.

    Violations are in the constraint's own units: how far below zero its slack lies, 0 where it is met. `active`: the
    share of samples at which it is; `where`: between which contexts, of scalar contexts.
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
    - `price`: by how much the lower objective of an exact policy lies above the constrained minimum at most, on account
      of smoothing. `equalities`: how many equalities were eliminated.
    """

    equalities: int
    largest: float
    mean: float
    largest_fresh: float
    mean_fresh: float
    price: float
    rows: tuple[Met, ...] = ()

    @property
    def active(self) -> tuple[Met, ...]:
        """The inequalities that are active somewhere, those that are so most often first."""
        return tuple(sorted((row for row in self.rows if row.active >= _RARELY), key=lambda row: -row.active))

    def words(self) -> list[str]:
        """For printing."""
        said = []
        if self.equalities:
            said.append(f"equalities: {self.equalities}, eliminated: the policy meets them everywhere, to rounding.")
        if not self.rows:
            return said
        size = lambda largest, mean: f"violated by {largest:.2g} at most (mean {mean:.2g})" if largest > 0 else "met"
        met = (
            f"{size(self.largest, self.mean)} at the samples, {size(self.largest_fresh, self.mean_fresh)} at fresh "
            "contexts, in units of y"
        )
        said.append(f"constraints: {met}; smoothing them costs the lower objective {self.price:.2g} at most.")
        active = [_where(row) for row in self.active]
        if active:
            more = f", and {len(active) - _LISTED_ACTIVE} more" if len(active) > _LISTED_ACTIVE else ""
            said.append(f"active: {'; '.join(active[:_LISTED_ACTIVE])}{more}.")
        return said

    @staticmethod
    def from_json(entry: dict[str, Any]) -> "Feasibility":
        """The inverse of ``dataclasses.asdict``, from a file."""
        ends = lambda row: None if row["where"] is None else tuple(row["where"])
        rows = tuple(Met(**{**row, "where": ends(row)}) for row in entry["rows"])
        return Feasibility(**{**entry, "rows": rows})


def _where(row: Met) -> str:
    ends = "" if row.where is None else f" (xi from {row.where[0]:.3g} to {row.where[1]:.3g})"
    return f"{row.name} at {row.active:.0%} of samples{ends}"
