r"""Which functions of the context a problem needs, by what is left without them.

With some functions fitted at a decision ``x``, the residuals $r = \partial_2 g$ and $\alpha = \partial_{22} g\, v -
\partial_2 f$ are projected on further functions, orthonormal over the samples. A function is needed for the *policy*
where $r$ has a component along it that noise does not explain; and for the *decision* where both the adjoint and the
change of the policy with ``x`` have one, since their product enters the gradient (docs/certificate.md). All samples
count: a component may be a small share of the noise and carry all there is to know about ``x``.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import special

_NEXT, _AHEAD = 0.05, 0.002  # levels of the tests: of the functions that come next, of those further ahead
_FALSE = 0.2  # functions, and groups of them, that noise alone may bring in at a time where they are tested in groups
_HERE, _NEARBY = (
    3.16e-3,
    1e-2,
)  # of the policy or the gradient, not worth a function: at the decision asked about, nearby


@dataclass(frozen=True)
class Component:
    """Rows projected on functions: the squares of the coefficients, those of their noise, and their ratios, each summed
    over `dy` components. A `part` of the functions is an array of indices, whose last axis runs over one group."""

    squares: Float[np.ndarray, " K"]
    noise: Float[np.ndarray, " K"]
    ratios: Float[np.ndarray, " K"]
    dy: int

    def energy(self, part: Int[np.ndarray, "... m"]) -> Any:
        """The squares of coefficients, without what noise adds."""
        return np.sum((self.squares - self.noise)[part], axis=-1)

    def stands_out(self, part: Int[np.ndarray, "... m"], level: float) -> Any:
        """Whether noise does not explain these coefficients."""
        return special.chdtrc(self.dy * part.shape[-1], np.sum(self.ratios[part], axis=-1)) < level


class Projection:
    """Functions, orthonormal over the samples, on which rows are projected."""

    def __init__(self, psi: Float[np.ndarray, "n K"], shares: Float[np.ndarray, " n"]):
        self.weighted = (psi * shares[:, None]).T
        self.squared, self.all = self.weighted**2, np.arange(psi.shape[1])

    def of(self, rows: Float[np.ndarray, "n dy"]) -> Component:
        squares, noise = (self.weighted @ rows) ** 2, self.squared @ rows**2
        ratios = np.divide(squares, noise, out=np.zeros_like(squares), where=noise > 0)
        return Component(*(np.sum(part, axis=1) for part in (squares, noise, ratios)), rows.shape[1])


@dataclass(frozen=True)
class Evidence:
    """What is left at one ``x``: of the policy, of the adjoint, and of the policy's change from another ``x``.

    `here`: whether that is the decision asked about, or one nearby.
    """

    policy: Component
    adjoint: Component | None = None
    change: Component | None = None
    here: bool = True


@dataclass
class Tests:
    """The evidence at several ``x``, and the sizes that it is compared with; `noisy`: whether noise is to be told from
    what is left."""

    noisy: bool
    policy_total: float = 0.0
    product_total: float = 0.0
    evidence: list[Evidence] = field(default_factory=list)

    def needed(self, part: Int[np.ndarray, "... m"], level: float) -> Any:
        """Whether some functions of each group are needed at some ``x``."""
        return np.any([self._needed_at(one, part, level) for one in self.evidence], axis=0)

    def _needed_at(self, one: Evidence, part: np.ndarray, level: float) -> Any:
        share = _HERE if one.here else _NEARBY
        wanted = one.policy.energy(part) > share**2 * self.policy_total
        if self.noisy:
            wanted &= one.policy.stands_out(part, level)
        if one.adjoint is None or one.change is None or self.product_total <= 0:
            return wanted
        energies = np.maximum(one.adjoint.energy(part), 0.0) * np.maximum(one.change.energy(part), 0.0)
        moving = np.sqrt(energies) > share * self.product_total
        if self.noisy:
            moving &= one.adjoint.stands_out(part, level) & one.change.stands_out(part, level)
        return wanted | moving

    def reach(self, have: int, most: int) -> int:
        """How many functions of a list are needed, given that the first `have` are there."""
        needed, start, width, level = have, have, max(1, have), _NEXT
        while start < most:
            end = min(start + width, most)
            if self.needed(np.arange(start, end), level):
                needed = self._last(start, end, level)
            start, width, level = end, 2 * width, _AHEAD
        return needed

    def _last(self, start: int, end: int, level: float) -> int:
        """The end of the part of a block that is needed; through noise a long list hides what one of it shows."""
        top = end
        while end - start > 1:
            middle = (start + end) // 2
            if self.needed(np.arange(middle, end if self.noisy else top), level):
                start = middle
            else:
                end = middle
        return end

    def single(self, count: int) -> Bool[np.ndarray, " K"]:
        """Which of so many functions are needed, each asked for alone; those that chance does not explain come first,
        since the contexts are a sample: what is left has a component along every function."""
        level, alone = _NEXT / max(count, 1), np.arange(count)[:, None]  # so that noise brings in one in twenty times
        wanted = self.needed(alone, level)
        if self.noisy:
            return wanted
        clear = wanted & np.any([one.policy.stands_out(alone, level) for one in self.evidence], axis=0)
        return clear if clear.any() else wanted

    def grouped(self, groups: list[np.ndarray]) -> Bool[np.ndarray, " K"]:
        """Which functions are needed, tested alone and in groups, through noise. The effect of a category is spread
        over several functions, none of which may stand out: of a group that does, those are taken that bring more than
        they cost, twice their noise."""
        count = sum(len(group) for group in groups)
        alone = np.arange(count)[:, None]
        wanted, worth = (self.needed(alone, level) for level in (_FALSE / max(count, 1), special.chdtrc(1, 2)))
        for group in groups:
            if len(group) > 1 and self.needed(group, _FALSE / len(groups)):
                wanted[group] |= worth[group]
        return wanted
