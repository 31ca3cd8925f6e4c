"""How a run ended, as sentences that name the remedy."""

import enum
import math


def outlook(share: float, pace: float, goal: float = 0.1, rounded: bool = False) -> str:
    """What to add when steps are used up: the gradient is at `share` of its first size, decreases by the share `pace`
    per step, and should reach `goal`; by default the size at which about a hundredth of the possible gain is left.
    `rounded`: whether it may have come to rest at rounding in single precision."""
    here = f"(The hypergradient is at {share:.2g} of its initial size"
    if share <= goal:
        return f"{here}.)"
    if not pace > 0:
        why = ': at rounding, more steps do not help, but precision="double" does' if rounded else ""
        return f"{here} and did not decrease in the last quarter of the run{why}.)"
    more = math.log(share / goal) / pace
    return f"{here}; at the rate of the last quarter, {goal:.2g} takes about {more:.2g} more steps.)"


class Result(enum.StrEnum):
    """How a run ended. Each member is a sentence; `code` is its number, for compiled programs and saved states.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> solution.result is cb.Result.CONVERGED
    True
    >>> solution.result.name
    'CONVERGED'
    """

    RUNNING = "Still running."
    CONVERGED = "Converged: the projected gradient promises no decrease beyond the tolerance or rounding."
    STALLED = (
        "Stalled: no step along the gradient lowers the upper objective any more, yet it promises more than the "
        "tolerance. Look at history['gradient'], and loosen the tolerance if it is small enough for you."
    )
    BUDGET = (
        "Budget spent: all allowed steps were taken, and the gradient of the upper objective is not yet zero. Allow "
        "more steps (with resume=..., steps still counts from the first one); if x runs away, set x_bounds."
    )
    DIVERGED = (
        "Diverged: an iterate became infinite or NaN; the last finite one is returned, and is not an answer. Make the "
        "step sizes smaller."
    )
    NOT_CONVEX = (
        "The lower level is not strongly convex in y at the point returned, so its minimiser, and with it the upper "
        "objective, is not defined there. Add a regulariser to lower, smooth its kinks (it must be twice "
        "differentiable: softplus for max), or bound x away from such points."
    )
    LOWER_FAILED = (
        "The lower level could not be minimised at the starting point: it may be linear or concave in y, have kinks "
        "(it must be twice differentiable: softplus instead of max), or y0 may be far away."
    )
    KINK = (
        "Converged at a kink of the reduced objective: its gradient jumps there, and the gradients on the two sides "
        "promise no decrease together."
    )
    UPPER_FAILED = (
        "The upper objective, or its gradient, is infinite or NaN at the starting point. Check upper, or give another "
        "x0 (and x_bounds that keep out of such regions)."
    )
    NOISE = (
        "Budget spent, at the noise floor: the average of the last hypergradients is indistinguishable from their "
        "noise. Smaller steps or larger batches would improve the solution; judge it with certify."
    )
    BOUNCING = (
        "Budget spent, bouncing: successive hypergradients undo each other, so the outer steps are too long, and this "
        "is not an answer. Make outer smaller."
    )
    SETTLED = (
        "Converged: the hypergradient as this solver estimates it, averaged over about the last hundred steps, is "
        "below the tolerance. This does not show a bias of the estimate; judge the solution with certify."
    )
    INFEASIBLE = (
        "The constraints on y cannot all be met at some contexts, for the x returned. Loosen the one named, drop "
        "these contexts, or bound x away from such points."
    )
    LIFTED = "Lifted from coefficients given by the caller; not checked."
    INTERRUPTED = (
        "Interrupted: stopped by a signal before the end. This is the state reached by then, not a solution. Continue "
        "with resume=..., or, if a checkpoint was given, with the same call."
    )
    GAVE_WAY = (
        "Constraints on y are violated though they can be met: at the x returned the lower level pushes against them "
        "harder than their barrier can hold, so the upper objective is not that of the problem. Set x_bounds, or "
        "start from an x0 nearer to the expected solution: the barrier is scaled there."
    )
    STATIONARY = (
        "Converged: the gradient of the upper objective, as this method computes it without a reduction, has vanished."
    )
    UNBOUNDED = (
        "The upper objective falls without end: x has run so far that rounding exceeds what the samples show, and this "
        "is not an answer. Check the sign of upper, or set x_bounds."
    )
    BEYOND = (
        "No step was taken: the run to continue, saved or in a checkpoint, has more steps behind it than steps allows "
        "(they count from the first one). This is where it stood; allow more steps to go on."
    )

    @property
    def code(self) -> int:
        """Its number in compiled programs and saved states."""
        return _ORDER.index(self)

    @staticmethod
    def of(code: int) -> "Result":
        """The member with this code."""
        return _ORDER[int(code)]

    @staticmethod
    def from_words(words: str) -> "Result":
        """The member whose sentence begins as these words do: files of the first format hold sentences."""
        return next((result for result in _ORDER if result[:30] == words[:30]), Result.LIFTED)  # no two agree so far

    @property
    def resumable(self) -> bool:
        """Whether more steps could have been taken."""
        return self in (Result.BUDGET, Result.NOISE, Result.BOUNCING, Result.SETTLED, Result.BEYOND)

    @property
    def good(self) -> bool:
        """Whether the point returned is a stationary point of the reduced problem."""
        return self in (Result.CONVERGED, Result.KINK, Result.SETTLED, Result.STATIONARY)


_ORDER = tuple(Result)
