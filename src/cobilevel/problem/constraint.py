"""What every constraint on ``y`` can say of itself."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from .array_checks import path_name
from .precision import Held

Right = Callable[[PyTree, Any], Any]  # b(x, xi)


class Constraint(eqx.Module):
    """A constraint on ``y``, stated for one context.

    Equalities are eliminated, so that the policy meets them exactly; everything else is a list of slacks, numbers that
    must not be negative.
    """

    def equalities(self, y0: PyTree) -> tuple[Float[np.ndarray, "m dy"], Right] | None:
        """``A`` and ``b(x, xi)`` of ``A y = b`` on the flattened ``y``, if there are any."""
        return None

    def slack(self, x: PyTree, y: PyTree, xi: Any) -> Float[Array, " m"] | None:
        """What must not be negative, if there is anything."""
        return None

    def names(self, y0: PyTree, count: int) -> list[str]:
        """Each of the slacks in words, for messages."""
        return []


class Turned(Constraint):
    """A constraint with the decision written in other coordinates: `decision` gives ``x``."""

    stated: Constraint
    decision: Callable

    def equalities(self, y0):
        found = self.stated.equalities(y0)
        return None if found is None else (found[0], lambda x, xi: found[1](self.decision(x), xi))

    def slack(self, x, y, xi):
        return self.stated.slack(self.decision(x), y, xi)

    def names(self, y0, count):
        return self.stated.names(y0, count)


def entry_names(y0: PyTree[Held]) -> list[str]:
    """``y[0]``, ``y['flow'][1]``, ...: the numbers of ``y``, flattened."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(y0):
        places = np.ndindex(leaf.shape)
        found += [path_name("y", path) + (str(list(place)) if place else "") for place in places]
    return found
