"""``Uncertainty``: how well the samples determine ``x``, coordinate by coordinate, and which directions they do not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, PyTree

from ..ground import flattened

LEVEL = 0.95  # how often an interval covers the truth: of all intervals, the certificate's included
QUANTILE = NormalDist().inv_cdf((1 + LEVEL) / 2)  # standard errors to each end of one
_HEAD = ("", "estimate", "std. error", f"{LEVEL:.0%} interval", "")
_LEAF_HEAD = ("", "shape", "norm", "std. error of a number", "")
AT_BOUND = "at its bound"  # the note on a coordinate that a bound holds
EARLY = "the run ended too early to tell where the minimum is"


@dataclass(frozen=True)
class Uncertainty:
    """Standard errors of ``x``, from the noise of both levels, and what they rest on.

    - `error`: the standard error of each coordinate; infinite if it is not determined, zero if a bound holds it, NaN if
      it could not be computed. `covariance`: of the flattened ``x``; if a coordinate is not determined, infinite on the
      diagonal and NaN beside it.
    - `bias`: about how far fitting the policy to these samples has moved each coordinate; `interval` is around
      ``x - bias``, and covers the minimiser of the problem with this basis 95% of the time. `ends`: how far it reaches
      from there, downward (negative) and upward; by default 1.96 standard errors. `bounds`: those on ``x``, which
      intervals keep to.
    - `notes`: a note on each coordinate; `undetermined`: sentences on directions that are not determined;
      `directions`: these directions, as rows. `remarks`: sentences on the assumptions behind the solution. `why_not`:
      why there are no standard errors; empty if there are.
    - `value`, `value_error`: the upper objective at ``x``, and its standard error.
    - `hessian`: the curvature of the objective.
    - `leaves`: for each array of ``x``, its name, its shape, and how many of its directions are determined (-1 if not
      known).
    """

    names: tuple[str, ...]
    x: Float[np.ndarray, " dx"]
    error: Float[np.ndarray, " dx"]
    bias: Float[np.ndarray, " dx"]
    notes: tuple[str, ...]
    undetermined: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    why_not: str = ""
    value: float = np.nan
    value_error: float = np.nan
    covariance: Float[np.ndarray, "dx dx"] | None = None
    hessian: Float[np.ndarray, "dx dx"] | None = None
    directions: Float[np.ndarray, "k dx"] | None = None
    leaves: tuple[tuple[str, tuple[int, ...], int], ...] = ()
    ends: Float[np.ndarray, "2 dx"] | None = None
    bounds: Float[np.ndarray, "2 dx"] | None = None

    @property
    def interval(self) -> Float[np.ndarray, "2 dx"]:
        """The ends of the 95% intervals; all that the bounds allow if a coordinate is not determined."""
        middle = np.where(np.isfinite(self.bias), self.x - self.bias, self.x)
        reach = QUANTILE * self.error
        ends = middle + (np.stack([-reach, reach]) if self.ends is None else self.ends)
        return ends if self.bounds is None else np.clip(ends, *self.bounds)

    def among(self, share: float) -> "Uncertainty":
        """The same if the rows used are a random share of all rows that ``x`` was found from: variances and the bias of
        fitting shrink by that share; the error of the basis does not."""
        if share == 1 or self.covariance is None:
            return self
        noise = np.maximum(np.diag(self.covariance), 0)
        with np.errstate(invalid="ignore"):
            missed = np.where(np.isfinite(noise), np.maximum(self.error**2 - noise, 0), 0)
            error = np.where(np.isfinite(self.error), np.sqrt(share * noise + missed), self.error)
            less = np.where((self.error > 0) & np.isfinite(self.error), error / self.error, 1.0)
        return replace(
            self,
            error=error,
            bias=share * self.bias,
            covariance=share * self.covariance,
            value_error=share**0.5 * self.value_error,
            ends=None if self.ends is None else less * self.ends,
        )

    @property
    def large(self) -> bool:
        """Whether ``x`` has so many numbers that it is printed array by array."""
        return len(self.names) > 40 and bool(self.leaves)  # rows that fit on a screen

    @property
    def head(self) -> tuple[str, ...]:
        """The names of the columns of `cells`."""
        return _LEAF_HEAD if self.large else _HEAD

    def cells(self) -> list[tuple[str, ...]]:
        """The decision, one row per coordinate: name, estimate, standard error, 95% interval, note. If there are many,
        one row per array of ``x``: name, shape, norm, standard error (root mean square over determined coordinates),
        how much is determined."""
        return self._leaf_cells() if self.large else self.coordinate_cells()

    def coordinate_cells(self) -> list[tuple[str, ...]]:
        """All coordinates, one per row."""
        (lo, hi), rows = self.interval, []
        for j, name in enumerate(self.names):
            ends = f"[{lo[j]:.5g}, {hi[j]:.5g}]" if np.isfinite(self.error[j]) else ""
            error = "" if np.isnan(self.error[j]) else f"{self.error[j]:.3g}"
            rows.append((name, f"{self.x[j]:.6g}", error, ends, self.notes[j]))
        return rows

    def _leaf_cells(self) -> list[tuple[str, ...]]:
        rows, ends = [], np.cumsum([0, *(int(np.prod(shape)) for _, shape, _ in self.leaves)])
        for (name, shape, count), begin, end in zip(self.leaves, ends[:-1], ends[1:], strict=True):
            part = slice(begin, end)
            spread = 0.0 if self.covariance is None else float(np.trace(self.covariance[part, part]))
            typical = f"{np.sqrt(spread / count):.3g}" if spread > 0 and count > 0 else ""
            held = sum(note == AT_BOUND for note in self.notes[part])
            note = f"about {count} of {end - begin} directions determined" if count >= 0 else ""
            note += f", {held} numbers at a bound" if held else ""
            rows.append((name, str(tuple(shape)), f"{np.linalg.norm(self.x[part]):.6g}", typical, note))
        return rows

    def table(self, every: bool = False) -> str:
        """The same as text; `every`: one row per coordinate, however many there are."""
        return "\n".join(aligned([_HEAD, *self.coordinate_cells()] if every else [self.head, *self.cells()]))

    def to_file(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a file keeps: a document, and arrays."""
        parts = {name: part for name, part in vars(self).items() if part is not None}
        arrays = {name: part for name, part in parts.items() if isinstance(part, np.ndarray)}
        return {name: part for name, part in parts.items() if name not in arrays}, arrays

    @staticmethod
    def from_file(document: dict[str, Any], arrays: dict[str, Any]) -> "Uncertainty":
        """The inverse of ``to_file``."""
        words = {name: tuple(map(str, document[name])) for name in ("names", "notes", "undetermined")}
        words["remarks"] = tuple(map(str, document.get("remarks", ())))
        words |= {name: float(document[name]) for name in ("value", "value_error")}
        numbers = {name: np.asarray(part, float) for name, part in arrays.items()}
        leaves = tuple((str(name), tuple(map(int, shape)), int(n)) for name, shape, n in document.get("leaves", ()))
        known = Uncertainty(**words, why_not=str(document["why_not"]), leaves=leaves, **numbers)
        size = len(known.names)
        shapes = {"x": (size,), "error": (size,), "bias": (size,), "covariance": (size, size), "hessian": (size, size)}
        shapes |= dict.fromkeys(("ends", "bounds"), (2, size))
        wrong = [name for name in shapes.keys() & arrays.keys() if numbers[name].shape != shapes[name]]
        if len(known.notes) != size or wrong:
            raise ValueError("the file is damaged: its standard errors do not match the coordinates they name.")
        return known


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """A table as lines: numbers to the right, names in front and words at the end to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ((first.ljust(widths[0]), *map(str.rjust, middle, widths[1:-1]), last) for first, *middle, last in rows)
    return ["  ".join(line).rstrip() for line in lines]


def names_of(x: PyTree, letter: str = "x") -> tuple[str, ...]:
    """A name for each coordinate of a decision: ``x``, ``x[3]``, ``x['price']``, ``x['toll'][0]``."""
    names = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        base, shape = letter + jax.tree_util.keystr(path), np.shape(leaf)
        names += [base + (f"[{', '.join(map(str, place))}]" if shape else "") for place in np.ndindex(*shape)]
    return tuple(names)


def leaves_of(x: PyTree, lost: Float[np.ndarray, "k dx"] | None) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """What `Uncertainty.leaves` states, with directions that are not determined as rows, in units in which ``x`` curves
    alike; none where they are not known. A direction counts in each array by its share, so that arrays add up."""
    found, begin = [], 0
    shares = None if lost is None else np.sum(np.linalg.qr(lost.T)[0] ** 2, axis=1)
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        end = begin + int(np.size(leaf))
        count = -1 if shares is None else round(float(np.sum(1 - shares[begin:end])))
        found.append(("x" + jax.tree_util.keystr(path), np.shape(leaf), count))
        begin = end
    return tuple(found)


def unknown(x: PyTree, why: str, value: float = np.nan) -> Uncertainty:
    """Where standard errors could not be computed."""
    flat, names = flattened(x), names_of(x)
    nothing = np.full(len(flat), np.nan)
    return Uncertainty(
        names, flat, nothing, nothing, ("",) * len(flat), why_not=why, value=value, leaves=leaves_of(x, None)
    )
