"""reduction.result."""

import enum


class Result(enum.IntEnum):
    """How a run ended."""

    RUNNING = 0
    CONVERGED = 1
    STALLED = 2
    BUDGET = 3
    DIVERGED = 4
    NOT_CONVEX = 5
    LOWER_FAILED = 6
    KINK = 7
    UPPER_FAILED = 8
    NOISE = 9
    BOUNCING = 10
    SETTLED = 11

    @property
    def resumable(self) -> bool:
        """Whether more steps could have been taken."""
        return self in (Result.BUDGET, Result.NOISE, Result.BOUNCING, Result.SETTLED)

    @property
    def good(self) -> bool:
        """Whether what was found is a stationary point of the reduced problem."""
        return self in (Result.CONVERGED, Result.KINK, Result.SETTLED)

    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Result.RUNNING: "Still running.",
    Result.CONVERGED: "Converged: the projected gradient of the reduced problem is below the tolerance.",
    Result.STALLED: "Stalled: no step along the gradient lowers the upper objective any more, yet the gradient is not "
    "below the tolerance. Look at history['gradient'], and loosen the tolerance if it is small enough for you.",
    Result.KINK: "Converged at a kink of the reduced objective: its gradient jumps there, and the gradients on the two "
    "sides combine to less than the tolerance.",
    Result.BUDGET: "Budget spent: all allowed steps were taken, and the gradient of the upper objective is not yet "
    "zero. Give it more steps, or resume.",
    Result.NOISE: "Budget spent, at the noise floor: the last hypergradients, averaged, can no longer be told from "
    "their own noise. Smaller steps or larger batches would go on; judge the solution with evaluate.",
    Result.BOUNCING: "Budget spent, bouncing: successive hypergradients undo each other, so the outer steps are too "
    "long, and this is not an answer. Make outer smaller.",
    Result.SETTLED: "Converged: the hypergradient as this solver estimates it, averaged over about the last hundred "
    "steps, is below the tolerance. A bias of the estimate itself would not show; judge the solution with evaluate.",
    Result.DIVERGED: "Diverged: an iterate became infinite or NaN; the last finite one is returned, and is not an "
    "answer. Make the step sizes smaller.",
    Result.NOT_CONVEX: "The lower level is not strongly convex in y at the point returned, so its minimiser, and with "
    "it the upper objective, is not defined there. Add a regulariser to lower, smooth its kinks (it must be twice "
    "differentiable: softplus for max), or bound x away from such points.",
    Result.UPPER_FAILED: "The upper objective, or its gradient, is infinite or NaN at the starting point. Check upper, "
    "or give another x0 (and x_bounds that keep out of such regions).",
    Result.LOWER_FAILED: "The lower level could not be minimised at the starting point: it may be unbounded below, "
    "have kinks (it must be twice differentiable in y: softplus for max, say), or y0 may be far away.",
}
