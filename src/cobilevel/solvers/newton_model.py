r"""The quadratic model of ``Newton``: where it has its minimum within the bounds, and by how much the objective falls
on the way there.

The Hessian is made positive by the sizes of its eigenvalues, in coordinates of unit curvature: $z_j = \sqrt{H_{jj}}\,
x_j$. In these, the step does not depend on the units of ``x``. Where a coordinate shows no curvature, the samples give
it a unit: that in which the gradients of single samples are as large as the spread of the objective over them.
"""

from copy import copy
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from ..derivatives import Expansions
from ..lower import LENGTHS, Point

_FLAT = 0.75  # exponent of the precision: curvature below this share of a coordinate's own is rounding


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Secants:
    """The last `steps` and the `changes` of the gradient along them, newest first; `count` are filled, others are 0."""

    steps: Any
    changes: Any
    count: Any

    @staticmethod
    def none(size: int, dx: int, dtype: Any = float) -> "Secants":
        return Secants(np.zeros((size, dx), dtype), np.zeros((size, dx), dtype), np.asarray(0, np.int32))

    def without(self) -> "Secants":
        """Room for as many, none filled."""
        return Secants.none(*self.steps.shape, self.steps.dtype)

    def with_one(self, step: Float[np.ndarray, " dx"], change: Float[np.ndarray, " dx"]) -> "Secants":
        """With one more, the oldest dropped."""
        roll = lambda table, row: np.concatenate([row[None].astype(table.dtype), table[:-1]])
        count = min(int(self.count) + 1, len(self.steps))
        return Secants(roll(self.steps, step), roll(self.changes, change), np.asarray(count, np.int32))

    def on(self, unit: Float[np.ndarray, " k"], free: Bool[np.ndarray, " dx"]) -> list[tuple[Any, Any, float]]:
        """Those with positive curvature on the free coordinates, in units of these, newest first."""
        known = [(np.asarray(part[: self.count, free], float)) for part in (self.steps, self.changes)]
        secants = zip(
            np.divide(known[0], unit, where=unit > 0, out=np.zeros_like(known[0])), known[1] * unit, strict=True
        )
        least = len(free) * np.finfo(float).eps  # below, the two are orthogonal but for rounding
        return [(s, c, s @ c) for s, c in secants if s @ c > least * np.linalg.norm(s) * np.linalg.norm(c)]


class Model:
    """The model at a point: a Hessian, or none, and the `unit` of each coordinate, in which the objective curves
    alike."""

    def __init__(
        self,
        at: Expansions,
        point: Point,
        hessian: Float[np.ndarray, "dx dx"] | None,
        unit: Float[np.ndarray, " dx"],
    ):
        self.gradient, self.hessian, self.unit, self.eps = point.gradient, hessian, unit, at.eps
        self.low, self.high = at.bounds[0] - point.x, at.bounds[1] - point.x
        self.free = free_at(at, point)

    def falling(self, length: float) -> Float[np.ndarray, " dx"] | None:
        """A step within the bounds along the direction in which the objective curves downwards most, so long that it
        would fall by half the square of a `length`; ``None`` where it does not."""
        if self.hessian is None or not self.free.any():
            return None
        values, vectors = np.linalg.eigh(self._scaled(self.free))
        if values[0] >= -(np.sqrt(self.eps)):
            return None
        step = np.zeros(len(self.free))
        step[self.free] = length * vectors[:, 0] * self.unit[self.free] / np.sqrt(-values[0])
        both = [np.clip(side * step, self.low, self.high) for side in (1, -1)]
        bends = [side @ self.hessian @ side for side in both]
        falls = [self.gradient @ side + bend / 2 for side, bend in zip(both, bends, strict=True)]
        best = int(np.argmin(falls))
        return both[best] if falls[best] < 0 and bends[best] < 0 else None

    def step(self, secants: Secants | None = None) -> Float[np.ndarray, " dx"]:
        """The way to the minimum within the bounds: coordinates that would leave them are held there, and the others
        adapt. With what secants know, where they are given."""
        step, free = np.zeros(len(self.free)), self.free.copy()
        while free.any():
            slope = self.gradient if self.hessian is None else self.gradient + self.hessian @ np.where(free, 0.0, step)
            step[free] = -self._inverse(slope[free], free, secants)
            out = free & ((step < self.low) | (step > self.high))
            if not out.any():
                break
            step[out] = np.clip(step, self.low, self.high)[out]
            free &= ~out
        if self.gradient @ step < 0 or not self.free.any():
            return step
        return np.clip(np.where(self.free, -(self.unit**2) * self.gradient, 0.0), self.low, self.high)

    def shorter(
        self, whole: Float[np.ndarray, " dx"], share: float, secants: Secants | None
    ) -> Float[np.ndarray, " dx"]:
        """The way to the minimum within a distance, about this share of the whole way: the model curves more, in all
        coordinates alike."""
        with np.errstate(divide="ignore"):
            unit = np.where(self.unit > 0, self.unit, np.inf)
            bend, size = np.diag(1 / unit**2), lambda step: float(np.linalg.norm(step / unit))
        damped, step, damping = copy(self), whole, 0.25 * np.linalg.norm(self.gradient * self.unit) / size(whole)
        for _ in range(LENGTHS):
            damped.hessian = self.hessian + damping * bend  # pyright: ignore[reportOptionalOperand]
            step, damping = damped.step(secants), 4 * damping
            if size(step) <= share * size(whole):
                break
        return step

    def doubt(self, secants: Secants | None, news: list[tuple[np.ndarray, np.ndarray]]) -> float:
        """How far off steps are that the model, with secants, makes of changes of the gradient, as a share of them."""
        every, unit = np.ones(len(self.unit), bool), np.where(self.unit > 0, self.unit, np.inf)
        size = lambda step: float(np.linalg.norm(step / unit))
        return sum(size(self._inverse(change, every, secants) - step) / (size(step) or 1.0) for step, change in news)

    def _scaled(self, free: Bool[np.ndarray, " dx"]) -> Float[np.ndarray, "k k"]:
        unit = self.unit[free]
        return self.hessian[np.ix_(free, free)] * np.outer(unit, unit)  # pyright: ignore[reportOptionalSubscript]

    def _inverse(
        self, q: Float[np.ndarray, " k"], free: Bool[np.ndarray, " dx"], secants: Secants | None
    ) -> Float[np.ndarray, " k"]:
        """The inverse of the model's Hessian on the free coordinates, by the two loops of L-BFGS; in units."""
        unit = self.unit[free]
        known, shares, q = [] if secants is None else secants.on(unit, free), [], unit * q
        for s, c, bend in known:
            shares.append(s @ q / bend)
            q = q - shares[-1] * c
        r = q if self.hessian is None else self._solved(self._scaled(free), q)
        if self.hessian is None and known:  # the newest pair tells by how much the units are off
            r = q * (known[0][2] / np.sum(known[0][1] ** 2))
        for (s, c, bend), share in zip(known[::-1], shares[::-1], strict=True):
            r = r + s * (share - c @ r / bend)
        return unit * r

    def _solved(self, matrix: Float[np.ndarray, "k k"], q: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """The inverse of a Hessian, with the sizes of its eigenvalues and 1 for those that are rounding, times `q`."""
        least = self.eps**_FLAT
        try:
            np.linalg.cholesky(matrix - least * np.eye(len(matrix)))
            return np.linalg.solve(matrix, q)
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(matrix)
            return vectors @ ((vectors.T @ q) / np.where(np.abs(values) > least, np.abs(values), 1.0))


def free_at(at: Expansions, point: Point) -> Bool[np.ndarray, " dx"]:
    """The coordinates that may move against the gradient: not those that it pushes against a bound."""
    (lo, hi), pushed = at.bounds, point.gradient
    return ~((point.x <= lo) & (pushed > 0) | (point.x >= hi) & (pushed < 0) | (lo == hi))


def units_of(hessian: Float[np.ndarray, "dx dx"]) -> Float[np.ndarray, " dx"]:
    """The distance along each coordinate over which the objective curves by 1; infinite where it does not.

    Where a coordinate curves only together with others, that over which it does with them.
    """
    sizes = np.abs(hessian)
    root = np.sqrt(np.diag(sizes))
    with np.errstate(divide="ignore", invalid="ignore"):
        shared = np.max(np.where(root > 0, sizes / root, 0.0), axis=1, initial=0)
        root = np.where(root > 0, root, np.where(shared > 0, shared, np.sqrt(np.max(sizes, axis=1, initial=0))))
        over = np.where(sizes > 0, sizes / np.outer(root, root), 0.0)  # 1 at most, where all curves upwards
        return 1 / (root * np.sqrt(np.maximum(np.max(over, axis=1, initial=0), 1.0)))


def explaining(
    exact: Float[np.ndarray, "dx dx"],
    straight: Float[np.ndarray, "dx dx"],
    unit: Float[np.ndarray, " dx"],
    news: list[tuple[np.ndarray, np.ndarray]],
    eps: float,
) -> tuple[Float[np.ndarray, "dx dx"], list[tuple[np.ndarray, np.ndarray]]]:
    """The exact Hessian, or that of a policy straight in ``x``, where it curves upwards and explains the last change of
    the gradient better than one that does not curve upwards or explain half of it; and the changes that are not so
    explained."""
    least = lambda hessian: np.linalg.eigvalsh(hessian * np.outer(unit, unit))[0]
    off = lambda hessian, step, change: float(np.linalg.norm(unit * (hessian @ step - change)))
    unexplained = lambda hessian: [each for each in news if off(hessian, *each) >= np.linalg.norm(unit * each[1]) / 2]
    left = unexplained(exact)
    if not (left or least(exact) < 0) or not np.all(np.isfinite(straight)) or least(straight) < -(eps**_FLAT):
        return exact, left
    left_of_straight = unexplained(straight)
    if left_of_straight and off(straight, *news[0]) >= off(exact, *news[0]):
        return exact, left
    return straight, left_of_straight
