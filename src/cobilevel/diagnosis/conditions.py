"""The conditions of the convergence theorem for Chebyshev bases, as far as contexts and coefficients show them."""

import numpy as np
from jaxtyping import Float

from ..problem import Box, Domain, Finite, Interval
from .advice import covered_share
from .decay import Decay
from .diagnosis import Condition

_MOST_CELLS, _CONTEXTS_A_CELL = 20, 25  # by which the density of contexts is looked at, and what each should hold
_FEWEST_CELLS, _FEWEST_CONTEXTS = 4, 20  # below which density and coverage are not judged


def conditions_of(domain: Domain, u: Float[np.ndarray, "n d"], decay: Decay | None) -> dict[str, Condition]:
    """Density and coverage of the contexts (on the reference cube), and whether the policy is analytic."""
    if isinstance(domain, Finite):
        return {"density": Condition(True, "contexts are finite.")}
    if not isinstance(domain, Interval | Box):
        return {}  # the theorem is one on polynomials over a box
    return {"density": _density(u), "coverage": _coverage(u), "analytic": _analytic(decay)}


def _density(u: Float[np.ndarray, "n d"]) -> Condition:
    cells = int(np.clip(len(u) // _CONTEXTS_A_CELL, 1, _MOST_CELLS))
    if cells < _FEWEST_CELLS:
        return Condition(None, "too few contexts.")
    held = np.stack([np.histogram(column, cells, (-1, 1))[0] for column in u.T])
    thin, even = int(held.min()), len(u) / cells
    words = f"the emptiest of {cells} cells holds {thin / even:.0%} of an even share."
    return Condition(bool(thin + 3 * np.sqrt(thin + 1) >= even / 2), words)


def _coverage(u: Float[np.ndarray, "n d"]) -> Condition:
    covered, count = covered_share(u), len(u)
    full = None if count < _FEWEST_CONTEXTS else bool(np.all(1 - covered <= max(0.1, 10 / count)))
    return Condition(full, f"contexts fill {', '.join(f'{share:.0%}' for share in covered)} of the domain.")


def _analytic(decay: Decay | None) -> Condition:
    kind = None if decay is None else decay.kind
    if kind in ("geometric", "finite"):
        return Condition(True, "nothing speaks against it.")
    if decay is None or kind != "algebraic":
        return Condition(None, "too little to go by.")
    places = ", ".join(f"xi = {kink.location:.3g}" for kink in decay.kinks)
    return Condition(False, f"the policy has a kink near {places}." if places else "the policy has a kink.")
