"""A basis chosen around one decision ``x``: how many functions, and in several dimensions which ones.

``choose_basis`` adds functions while what is left without them stands out of the noise. ``Search`` is for bases grown
to a tolerance: fits with more and more functions, judged by the lower objective on samples held out. The most that is
tried is what the samples support (``Samples.supported``).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis import Axes, Basis, BSpline, Categorical, Orthonormal, basis_of
from ..derivatives import flattened
from ..problem import LOOK_ROWS, Finite, Periodic, Study
from .alternatives import Family, compared
from .hunt import Hunt
from .nested_fits import MOST_COEFFICIENTS, Candidate, NestedFits, Split, by_degree, by_margin

_FITTED_SHARE = 0.8  # of the samples looked at; the others are held out
_GAIN = 1e-6  # share of the whole gain in the lower objective that is not worth more functions
_STABLE = 3  # polynomials are stable up to about the square root of so many times the samples
_SPLINES_EACH = 1.5  # splines that do what a polynomial does
_FURTHER = 4  # candidates beyond the one that held-out samples prefer
_SAMPLES_A_CATEGORY = 3  # asked for each value of a Finite domain, to give each a policy of its own


@dataclass(frozen=True)
class Choice:
    """The basis chosen at one ``x``, and why; `candidates` are all that were tried, `pick` the one chosen; `hunt` is
    what it was found with, to be used again at another ``x``; `family`: its functions, where they are no products over
    the coordinates; `spent`: what it cost, and those before it."""

    basis: Basis
    words: str
    candidates: tuple[Candidate, ...]
    pick: int
    spent: Counter
    hunt: Hunt | None = None
    family: Family | None = None

    @property
    def functions(self) -> int:
        """How large it is, to compare two choices."""
        return len(self.candidates[self.pick].members) if self.candidates else 0

    def replaces(self, before: "Choice") -> bool:
        """Whether to solve again with this one, chosen where another led: it has more functions, or others."""
        if self.family is None and before.family is None:
            return self.functions > before.functions
        return self.family is not before.family


@dataclass(frozen=True)
class Search:
    """What a search works with: the study, fits to a part of its samples, and the most functions these support."""

    study: Study
    fits: NestedFits
    most: int

    @staticmethod
    def on(study: Study, key: Array, spent: Counter) -> "Search":
        split = Split.of(study, key, _FITTED_SHARE)
        most = min(split.train.supported(study.noisy), MOST_COEFFICIENTS // study.problem.sizes[1])
        return Search(study, NestedFits(study, split, spent), max(1, most))

    @property
    def held(self) -> int:
        """How many samples are held out."""
        return 0 if self.fits.split.held is None else len(self.fits.split.held)

    def climb(
        self, x: Float[np.ndarray, " dx"], members: np.ndarray, enough: Callable[[list[Candidate]], bool]
    ) -> list[Candidate]:
        """Candidates from `members` up until there are enough, a fit fails, or there are no more."""
        self.fits.forget()
        steps, found = (by_degree if self.fits.axes.nested else by_margin)(self.fits, x, members, self.most), []
        for candidate in steps if self.held >= 2 else ():
            if candidate is None:
                break
            found.append(candidate)
            if enough(found):
                break
        return found

    def pick(self, candidates: list[Candidate]) -> int:
        """The smallest set that held-out samples find as good as the best one."""
        values = np.stack([c.judged for c in candidates])
        means = values.mean(axis=1)
        best = int(np.argmin(means))
        slack = np.full(len(values), _GAIN * (means[0] - means[best]))
        if self.study.noisy:
            slack = np.maximum(slack, np.std(values - values[best], axis=1) / np.sqrt(values.shape[1]))
        return int(np.argmax(means - means[best] <= slack))


def choose_basis(
    study: Study, x: PyTree, key: Array, before: Choice | None = None, policy: Callable | None = None
) -> Choice:
    """A basis for these data around the decision ``x``, and the reason in words.

    The functions natural to each coordinate (``Axes``), and products of them, are added while what is left without
    them stands out of the noise, of the policy or of what moves the decision (``significance``), at ``x`` or at a few
    points nearby. Never fewer than ``x`` has coordinates, where the samples support so many. `before`: a choice made
    for the same study with the same key, whose functions are kept and whose costs count too; `policy`: what it led to.
    """
    domain, spent = study.problem.domain, Counter() if before is None else before.spent
    at = flattened(x)
    if isinstance(domain, Finite):
        found = _of_categories(study, domain, key, spent)
        if found is not None:
            return found
    if study.problem.sizes[1] > MOST_COEFFICIENTS:
        members = Axes.of(domain).up_to(0)
        words = f"{basis_of(members, domain)!r}: a y of {study.problem.sizes[1]} numbers is too large for tests."
        return Choice(basis_of(members, domain), words, (_untried(members),), 0, spent)
    if study.noisy and study.constrained is not None and study.constrained.smoothing is not None:
        return _by_held_out(study, at, key, spent)
    hunt = Hunt.on(study, key, spent) if before is None or before.hunt is None else before.hunt
    hunt.fits.forget(None if policy is None else hunt.fits.rows.table(policy(hunt.rows.xi)))
    if before is not None and before.family is not None:
        return _again(before, hunt, at)
    members, words = hunt.at(at, key, None if before is None else before.candidates[before.pick].members)
    basis, count = basis_of(members, domain), len(members)
    polynomials = hunt.axes.nested and not isinstance(domain, Periodic)
    if polynomials and _STABLE * len(hunt.shares) < count**2:
        basis = Orthonormal(BSpline(min(hunt.most, round(_SPLINES_EACH * count))))
        words = f"{words} Splines, since {count} polynomials would be unstable near the ends of the interval."
    tried = (_untried(members),)
    # where no more functions are found than before, families were compared already
    anew = before is None or len(members) > before.functions
    verdict = compared(hunt, at, members) if anew else None
    if verdict is not None and verdict.basis is not None:
        words = f"{verdict.basis!r}, learned from the samples. {verdict.words}"
        return Choice(verdict.basis, words, tried, 0, spent, hunt, verdict.family)
    words = f"{basis!r}: {words}" if verdict is None else f"{basis!r}: {words} {verdict.words}"
    return Choice(basis, words, tried, 0, spent, hunt)


def _untried(members: np.ndarray) -> Candidate:
    """A set that is not judged."""
    return Candidate(members, np.zeros(0), np.zeros(0), np.nan)


def _by_held_out(study: Study, x: Float[np.ndarray, " dx"], key: Array, spent: Counter) -> Choice:
    """As few functions as held-out samples find as good as more: under a barrier, what is left has forces of the
    constraints in it, and tests of it against noise say little."""
    search, axes = Search.on(study, key, spent), Axes.of(study.problem.domain)
    found = search.climb(x, axes.up_to(0), lambda found: search.pick(found) < len(found) - _FURTHER)
    tried, pick = tuple(found) or (_untried(axes.up_to(1)),), search.pick(found) if found else 0
    basis = basis_of(tried[pick].members, study.problem.domain)
    sizes = f"of up to {len(tried[-1].members)} functions, as good on {search.held} samples held out as any"
    return Choice(basis, f"{basis!r}: {sizes}, with the constraints smoothed.", tried, pick, spent)


def _again(before: Choice, hunt: Hunt, x: Float[np.ndarray, " dx"]) -> Choice:
    """A learned family where it led: kept while nothing else is better there by more than a standard error."""
    verdict = compared(hunt, x, before.candidates[before.pick].members, before.family)
    if verdict is None or verdict.basis is None:
        return before
    words = f"{before.words} Learned anew where that led: {verdict.words}"
    return replace(before, basis=verdict.basis, words=words, family=verdict.family)


def _of_categories(study: Study, domain: Finite, key: Array, spent: Counter) -> Choice | None:
    """A free policy for each value, where those that were seen at all were seen a few times each."""
    seen, count = study.lower.contexts().distinct(), len(domain.values)
    known = None if study.lower.crossed else study.lower.count  # joint samples need not be looked at to be counted
    looked = len(study.lower.look(key).samples) if known is None else min(LOOK_ROWS, known)
    if _SAMPLES_A_CATEGORY * seen > looked and study.noisy and domain.labels is None:  # strings have no order
        return None
    words = f"Categorical(): a free policy for each of the {count} contexts."
    if seen < count:
        words = (
            f"Categorical(): a free policy for each of the {seen} contexts that were seen; at the other {count - seen} "
            "there is nothing to learn it from, and it is y0 there."
        )
    return Choice(Categorical(), words, (), 0, spent)
