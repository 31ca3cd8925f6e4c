"""Responses: what each sample alone asks of the policy, so that families of functions are compared by regression."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

_TUNED_ON = 0.75  # share of the rows fitted to while settings are tuned
_SMALLEST = 1e-9  # pivot, relative to the largest: below, contexts do not distinguish a function from those before it


@dataclass(frozen=True)
class Responses:
    r"""Contexts `u` on the reference cube, and at each a Newton step from a policy, $t = y - A^{-1} \partial_2 g$.

    In units in which $A$, the mean of $\partial_{22} g$, is the identity: the mean square of ``t - y`` is then, about,
    twice the lower objective up to a constant, and exactly where ``g`` is quadratic with one Hessian. `shares` are the
    weights of the samples, which sum to 1.
    """

    u: Float[np.ndarray, "n d"]
    t: Float[np.ndarray, "n k"]
    shares: Float[np.ndarray, " n"]

    @staticmethod
    def of(u: Any, t: Any, curvature: Any, shares: Any) -> "Responses":
        """From responses in the units of ``y``."""
        values, vectors = np.linalg.eigh(np.asarray(curvature, float))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return Responses(np.asarray(u, float), np.asarray(t, float) @ root, np.asarray(shares, float))

    def __len__(self) -> int:
        return len(self.u)

    @property
    def root(self) -> Float[np.ndarray, "n 1"]:
        """What rows are multiplied by, so that sums of squares are weighted."""
        return np.sqrt(self.shares)[:, None]

    @property
    def spread(self) -> float:
        """The variance of the responses."""
        return float(self.shares @ np.sum((self.t - self.shares @ self.t) ** 2, axis=1))

    def error_of(self, values: Float[np.ndarray, " n"]) -> float:
        """The standard error of the weighted mean of values, one a row."""
        return float(np.sqrt(np.sum(self.shares**2 * (values - self.shares @ values) ** 2)))

    def part(self, start: float, end: float) -> "Responses":
        """The rows between two shares of them."""
        rows = slice(round(start * len(self)), round(end * len(self)))
        shares = self.shares[rows]
        return Responses(self.u[rows], self.t[rows], shares / shares.sum())

    def to_tune(self, most: int) -> "tuple[Responses, Responses]":
        """Some rows to fit to while settings are tuned, and others to tune them on; at most so many."""
        rows = self.part(0.0, min(1.0, most / len(self)))
        return rows.part(0.0, _TUNED_ON), rows.part(_TUNED_ON, 1.0)

    def leading(self, smooth: Float[np.ndarray, "n k"], most: int) -> "Responses":
        """The components that vary most in a smooth fit of them."""
        if self.t.shape[1] <= most:
            return self
        _, _, rows = np.linalg.svd(self.root * (smooth - self.shares @ smooth), full_matrices=False)
        return replace(self, t=self.t @ rows[:most].T)


def nested_errors(
    fitted: Responses, held: Responses, tables: tuple[np.ndarray, np.ndarray], counts: Sequence[int]
) -> Float[np.ndarray, "k m"]:
    """The squared errors on held-out rows of fits with the first functions of a table, for each count of them."""
    q, triangle = np.linalg.qr(fitted.root * tables[0])
    pivots = np.abs(np.diag(triangle))
    usable = int(np.argmin(np.append(pivots > _SMALLEST * pivots.max(), False)))
    coefficients = q[:, :usable].T @ (fitted.root * fitted.t)
    there = np.linalg.solve(triangle[:usable, :usable].T, tables[1][:, :usable].T).T
    return np.stack([np.sum((held.t - there[:, :n] @ coefficients[:n]) ** 2, axis=1) for n in counts])
