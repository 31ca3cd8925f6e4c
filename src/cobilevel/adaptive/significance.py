r"""Which functions of the context a problem needs, by what is left without them.

With some functions fitted at a decision ``x``, the residuals $r = \partial_2 g$ and $\alpha = \partial_{22} g\, v -
\partial_2 f$ are projected on further functions, orthonormal over the samples. A function is needed for the *policy*
where $r$ has a component along it that noise does not explain; and for the *decision* where both the adjoint and the
change of the policy with ``x`` have one, since their product enters the gradient (docs/certificate.md). All samples
count: a component may be a small share of the noise and carry all there is to know about ``x``.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float
from scipy import special

_NEXT, _AHEAD = 0.05, 0.002  # levels of the tests: of the functions that come next, of those further ahead
_FALSE = 0.2  # functions, and groups of them, that noise alone may bring in at a time where they are tested in groups
_WORTH = 0.157  # level at which a function of a group that is needed brings more than its noise costs: a square of 2
# what is not worth a function, at the decision asked about and at those nearby
_POLICY_SHARE = (1e-5, 1e-4)  # of the policy's variance over contexts
_PRODUCT_SHARE = (3e-3, 1e-2)  # of the gradient


@dataclass(frozen=True)
class Component:
    """A table of rows projected on functions: coefficients, their noise, and the size of all there is."""

    coefficients: Float[np.ndarray, "K dy"]
    noise: Float[np.ndarray, "K dy"]
    total: float

    def energy(self, part: slice | np.ndarray) -> float:
        """The squares of coefficients, without what noise adds."""
        return float(np.sum(self.coefficients[part] ** 2 - self.noise[part]))

    def stands_out(self, part: slice | np.ndarray, level: float) -> bool:
        """Whether noise does not explain these coefficients."""
        c, n = self.coefficients[part], self.noise[part]
        size = float(np.sum(np.where(n > 0, c**2 / np.where(n > 0, n, 1), 0)))
        return bool(special.chdtrc(c.size, size) < level)

    def energies(self) -> Float[np.ndarray, " K"]:
        """The same function by function."""
        return np.sum(self.coefficients**2 - self.noise, axis=1)

    def each_stands_out(self, level: float) -> Bool[np.ndarray, " K"]:
        """The same function by function."""
        c, n = self.coefficients, self.noise
        size = np.sum(np.where(n > 0, c**2 / np.where(n > 0, n, 1), 0), axis=1)
        return special.chdtrc(c.shape[1], size) < level


@dataclass(frozen=True)
class Projection:
    """Functions with the weights of the samples, and their squares, on which tables are projected."""

    weighted: Float[np.ndarray, "K n"]
    squared: Float[np.ndarray, "K n"]

    @staticmethod
    def on(psi: Float[np.ndarray, "n K"], shares: Float[np.ndarray, " n"]) -> "Projection":
        weighted = (psi * shares[:, None]).T
        return Projection(weighted, weighted**2)

    def of(self, rows: Float[np.ndarray, "n dy"], total: float = 0.0) -> Component:
        return Component(self.weighted @ rows, self.squared @ rows**2, total)


@dataclass(frozen=True)
class Evidence:
    """What is left at one ``x``: of the policy, of the adjoint, and of the policy's change from another ``x``.

    `here`: whether that is the decision asked about, or one nearby.
    """

    policy: Component
    noisy: bool
    adjoint: Component | None = None
    change: Component | None = None
    here: bool = True

    @property
    def _shares(self) -> tuple[float, float]:
        """Of the policy and of the gradient: what is not worth a function."""
        return (_POLICY_SHARE[0], _PRODUCT_SHARE[0]) if self.here else (_POLICY_SHARE[1], _PRODUCT_SHARE[1])

    def needed(self, part: slice | np.ndarray, level: float, policy_total: float, product_total: float) -> bool:
        """Whether some of these functions are needed."""
        energy = self.policy.energy(part)
        policy_share, product_share = self._shares
        if energy > policy_share * policy_total and (not self.noisy or self.policy.stands_out(part, level)):
            return True
        if self.adjoint is None or self.change is None or product_total <= 0:
            return False
        product = np.sqrt(max(self.adjoint.energy(part), 0.0) * max(self.change.energy(part), 0.0))
        if product <= product_share * product_total:
            return False
        return not self.noisy or (self.adjoint.stands_out(part, level) and self.change.stands_out(part, level))

    def each_needed(self, level: float, policy_total: float, product_total: float) -> Bool[np.ndarray, " K"]:
        """The same for each function alone."""
        policy_share, product_share = self._shares
        wanted = self.policy.energies() > policy_share * policy_total
        if self.noisy:
            wanted &= self.policy.each_stands_out(level)
        if self.adjoint is None or self.change is None or product_total <= 0:
            return wanted
        energies = [np.maximum(part.energies(), 0.0) for part in (self.adjoint, self.change)]
        moving = np.sqrt(energies[0] * energies[1]) > product_share * product_total
        if self.noisy:
            moving &= self.adjoint.each_stands_out(level) & self.change.each_stands_out(level)
        return wanted | moving


@dataclass
class Tests:
    """The evidence at several ``x``, and the sizes that it is compared with."""

    policy_total: float = 0.0
    product_total: float = 0.0
    evidence: list[Evidence] = field(default_factory=list)

    def needed(self, part: slice | np.ndarray, level: float) -> bool:
        """Whether some of these functions are needed at some ``x``."""
        return any(one.needed(part, level, self.policy_total, self.product_total) for one in self.evidence)

    def reach(self, have: int, most: int) -> int:
        """How many functions of a list are needed, given that the first `have` are there."""
        needed, start, width, level = have, have, max(1, have), _NEXT
        while start < most:
            end = min(start + width, most)
            if self.needed(slice(start, end), level):
                needed = self._last(start, end, level)
            start, width, level = end, 2 * width, _AHEAD
        return needed

    def _last(self, start: int, end: int, level: float) -> int:
        """The end of the part of a block that is needed.

        Without noise, all that lies behind it together is not; with noise, no half of that is, since a long list hides
        what one of its functions shows.
        """
        top, exact = end, not any(one.noisy for one in self.evidence)
        while end - start > 1:
            middle = (start + end) // 2
            if self.needed(slice(middle, top if exact else end), level):
                start = middle
            else:
                end = middle
        return end

    def single(self, count: int) -> np.ndarray:
        """Which of so many functions are needed, each asked for alone.

        Without noise all that is left is needed, but the contexts are still a sample: while much is left, it has a
        component along every function by chance. Those that chance does not explain come first then.
        """
        level = _NEXT / max(count, 1) ** 0.5
        wanted, explained = np.zeros(count, bool), np.ones(count, bool)
        for one in self.evidence:
            wanted |= one.each_needed(level, self.policy_total, self.product_total)
            explained &= False if one.noisy else ~one.policy.each_stands_out(level)
        clear = wanted & ~explained
        return clear if clear.any() else wanted

    def grouped(self, groups: list[np.ndarray]) -> np.ndarray:
        """Which functions are needed, tested alone and in groups that belong together, through noise.

        Of many functions hardly any of which is needed, a level that lets some in by chance costs much: those that
        noise picks are the ones it moves most. The effect of a category is spread over several functions, none of which
        may stand out: of a group that does, those are taken that bring more than they cost.
        """
        count = sum(len(group) for group in groups)
        wanted, worth = (self._each_needed(count, level) for level in (_FALSE / max(count, 1), _WORTH))
        for group in groups:
            if len(group) > 1 and self.needed(group, _FALSE / len(groups)):
                wanted[group] |= worth[group]
        return wanted

    def _each_needed(self, count: int, level: float) -> np.ndarray:
        found = np.zeros(count, bool)
        for one in self.evidence:
            found |= one.each_needed(level, self.policy_total, self.product_total)
        return found
