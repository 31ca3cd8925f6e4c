"""``Uncertainty``: how well the samples determine ``x``, coordinate by coordinate, and which directions they do not."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

_MOST_ROWS = 40  # coordinates of x that are printed
TABLE_HEAD = ("", "estimate", "std. error", "95% interval", "")
QUANTILE = 1.959963984540054  # of the normal law, for 95%


@dataclass(frozen=True)
class Uncertainty:
    """Standard errors of ``x``, from the noise of both levels, and what they rest on.

    - `error`: of each coordinate; infinite where it is not determined, zero where a bound holds it, NaN where it could
      not be found out. `covariance`: of the flattened ``x``, on the directions that are determined.
    - `bias`: what fitting the policy to these samples has moved each coordinate by, about; `interval` is around
      ``x - bias``, and covers the minimiser of the problem with this basis 95% of the time.
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

    @property
    def interval(self) -> Float[np.ndarray, "2 dx"]:
        """The ends of the 95% intervals; the whole line where a coordinate is not determined."""
        middle = np.where(np.isfinite(self.bias), self.x - self.bias, self.x)
        reach = QUANTILE * self.error
        return np.stack([middle - reach, middle + reach])

    def cells(self) -> list[tuple[str, ...]]:
        """The decision, one coordinate a row: name, estimate, standard error, 95% interval, note."""
        (lo, hi), rows = self.interval, []
        for j, name in enumerate(self.names[:_MOST_ROWS]):
            ends = f"[{lo[j]:.5g}, {hi[j]:.5g}]" if np.isfinite(self.error[j]) else ""
            error = "" if np.isnan(self.error[j]) else f"{self.error[j]:.3g}"
            rows.append((name, f"{self.x[j]:.6g}", error, ends, self.notes[j]))
        more = len(self.names) - _MOST_ROWS
        return rows + ([(f"... and {more} more", "", "", "", "")] if more > 0 else [])

    def table(self) -> str:
        """The same as text."""
        lines = [TABLE_HEAD, *self.cells()[:_MOST_ROWS]]
        widths = [max(len(line[k]) for line in lines) for k in range(4)]
        rows = [
            "  ".join([line[0].ljust(widths[0]), *(line[k].rjust(widths[k]) for k in (1, 2, 3)), line[4]])
            for line in lines
        ]
        rows += [line[0] for line in self.cells()[_MOST_ROWS:]]
        return "\n".join(row.rstrip() for row in rows)


_ARRAYS = ("x", "error", "bias", "covariance", "hessian", "directions")
_WORDS = ("names", "notes", "undetermined", "why_not", "value", "value_error")


def to_file(found: Uncertainty) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What a file keeps: a document, and arrays."""
    document = {name: getattr(found, name) for name in _WORDS}
    document = {name: list(part) if isinstance(part, tuple) else part for name, part in document.items()}
    return document, {name: getattr(found, name) for name in _ARRAYS if getattr(found, name) is not None}


def from_file(document: dict[str, Any], arrays: dict[str, Any]) -> Uncertainty:
    """The same, read back."""
    words: Any = {name: tuple(map(str, document[name])) for name in ("names", "notes", "undetermined")}
    words |= {name: float(document[name]) for name in ("value", "value_error")}
    numbers: Any = {name: np.asarray(part, float) for name, part in arrays.items()}
    found = Uncertainty(**words, why_not=str(document["why_not"]), **numbers)
    size = len(found.names)
    shapes = {"x": (size,), "error": (size,), "bias": (size,), "covariance": (size, size), "hessian": (size, size)}
    if len(found.notes) != size or any(numbers[name].shape != shapes[name] for name in shapes.keys() & arrays.keys()):
        raise ValueError("the file is damaged: its standard errors are not of the coordinates they name.")
    return found


def names_of(x: PyTree, letter: str = "x") -> tuple[str, ...]:
    """A name for each coordinate of a decision: ``x``, ``x[3]``, ``x['price']``, ``x['toll'][0]``."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(x):
        base = letter + jax.tree_util.keystr(path)
        shape = np.shape(leaf)
        found += [base + (f"[{', '.join(map(str, place))}]" if shape else "") for place in np.ndindex(*shape)]
    return tuple(found)


def unknown(x: PyTree, why: str, value: float = np.nan) -> Uncertainty:
    """What is known where standard errors could not be found out."""
    flat, names = np.asarray(ravel_pytree(x)[0], float), names_of(x)
    nothing = np.full(len(flat), np.nan)
    return Uncertainty(names, flat, nothing, nothing, ("",) * len(flat), why_not=why, value=value)


def like_x(values: Float[np.ndarray, " dx"], x: PyTree[Array]) -> Any:
    """A vector over the coordinates of ``x``, in its shape."""
    leaves, structure = jax.tree.flatten(x)
    parts = np.split(values, np.cumsum([np.size(leaf) for leaf in leaves])[:-1])
    return jax.tree.unflatten(structure, [p.reshape(np.shape(leaf)) for p, leaf in zip(parts, leaves, strict=True)])
