"""``Uncertainty``: how well the samples determine ``x``, coordinate by coordinate, and which directions they do not."""

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from ..trees import flattened

LEVEL = 0.95  # how often an interval covers the truth: of all intervals, the certificate's included
QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)  # standard errors to each end of one
TABLE_HEAD = ("", "estimate", "std. error", f"{LEVEL:.0%} interval", "")


@dataclass(frozen=True)
class Uncertainty:
    """Standard errors of ``x``, from the noise of both levels, and what they rest on.

    - `error`: of each coordinate; infinite where it is not determined, zero where a bound holds it, NaN where it could
      not be found out. `covariance`: of the flattened ``x``, on the directions that are determined.
    - `bias`: what fitting the policy to these samples has moved each coordinate by, about; `interval` is around
      ``x - bias``, and covers the minimiser of the problem with this basis 95% of the time. `ends`: how far it reaches
      from there, downward (negative) and upward; where left out, 1.96 standard errors.
    - `notes`: on each coordinate, in words; `undetermined`: sentences on directions; `directions`: rows, these
      directions. `why_not`: why there are no standard errors, in words; empty where there are.
    - `value`, `value_error`: the upper objective at ``x``, and its standard error.
    - `hessian`: the curvature of the objective.
    """

    names: tuple[str, ...]
    x: Float[np.ndarray, " dx"]
    error: Float[np.ndarray, " dx"]
    bias: Float[np.ndarray, " dx"]
    notes: tuple[str, ...]
    undetermined: tuple[str, ...] = ()
    why_not: str = ""
    value: float = np.nan
    value_error: float = np.nan
    covariance: Float[np.ndarray, "dx dx"] | None = None
    hessian: Float[np.ndarray, "dx dx"] | None = None
    directions: Float[np.ndarray, "k dx"] | None = None
    ends: Float[np.ndarray, "2 dx"] | None = None

    @property
    def interval(self) -> Float[np.ndarray, "2 dx"]:
        """The ends of the 95% intervals; the whole line where a coordinate is not determined."""
        middle = np.where(np.isfinite(self.bias), self.x - self.bias, self.x)
        reach = QUANTILE * self.error
        return middle + (np.stack([-reach, reach]) if self.ends is None else self.ends)

    def cells(self, most: int = 40) -> list[tuple[str, ...]]:
        """The decision, one coordinate a row, at most so many: name, estimate, standard error, 95% interval, note."""
        (lo, hi), rows = self.interval, []
        for j, name in enumerate(self.names[:most]):
            ends = f"[{lo[j]:.5g}, {hi[j]:.5g}]" if np.isfinite(self.error[j]) else ""
            error = "" if np.isnan(self.error[j]) else f"{self.error[j]:.3g}"
            rows.append((name, f"{self.x[j]:.6g}", error, ends, self.notes[j]))
        more = len(self.names) - most
        return rows + ([(f"... and {more} more", "", "", "", "")] if more > 0 else [])

    def table(self) -> str:
        """The same as text."""
        lines = [TABLE_HEAD, *self.cells()]
        width = [max(len(line[k]) for line in lines if line[1]) for k in range(4)]  # the line on others is longer
        rows = [
            "  ".join([line[0].ljust(width[0]), *(line[k].rjust(width[k]) for k in (1, 2, 3)), line[4]])
            for line in lines
        ]
        return "\n".join(row.rstrip() for row in rows)

    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a file keeps: a document, and arrays."""
        parts = {name: part for name, part in vars(self).items() if part is not None}
        arrays = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
        return {name: part for name, part in parts.items() if name not in arrays}, arrays

    @staticmethod
    def from_file(document: dict[str, Any], arrays: dict[str, Any]) -> "Uncertainty":
        """The inverse of ``to_file``."""
        words: Any = {name: tuple(map(str, document[name])) for name in ("names", "notes", "undetermined")}
        words |= {name: float(document[name]) for name in ("value", "value_error")}
        numbers: Any = {name: np.asarray(part, float) for name, part in arrays.items()}
        known = Uncertainty(**words, why_not=str(document["why_not"]), **numbers)
        size = len(known.names)
        shapes = {"x": (size,), "error": (size,), "bias": (size,), "covariance": (size, size), "hessian": (size, size)}
        shapes["ends"] = (2, size)
        wrong = [name for name in shapes.keys() & arrays.keys() if numbers[name].shape != shapes[name]]
        if len(known.notes) != size or wrong:
            raise ValueError("the file is damaged: its standard errors are not of the coordinates they name.")
        return known


def names_of(x: PyTree, letter: str = "x") -> tuple[str, ...]:
    """A name for each coordinate of a decision: ``x``, ``x[3]``, ``x['price']``, ``x['toll'][0]``."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        base, shape = letter + jax.tree_util.keystr(path), np.shape(leaf)
        names += [base + (f"[{', '.join(map(str, place))}]" if shape else "") for place in np.ndindex(*shape)]
    return tuple(names)


def unknown(x: PyTree, why: str, value: float = np.nan) -> Uncertainty:
    """Where standard errors could not be computed."""
    flat, names = flattened(x), names_of(x)
    nothing = np.full(len(flat), np.nan)
    return Uncertainty(names, flat, nothing, nothing, ("",) * len(flat), why_not=why, value=value)
