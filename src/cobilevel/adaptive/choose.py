"""A basis chosen at one decision ``x``: how many functions, and in several dimensions which ones.

The lower level is fitted with more and more Chebyshev functions, each fit going on from the one before, and judged by
the lower objective on samples held out: do more functions buy anything? The most that is tried is what the samples
support (``Samples.supported``).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis import Basis, Categorical, Chebyshev, Listed, Orthonormal
from ..derivatives import Ledger
from ..problem import Finite, Study
from .nested_fits import TIERS, Candidate, NestedFits, Split, by_degree, by_margin

_FITTED_SHARE = 0.8  # of the samples looked at; the others are held out
_MOST_COEFFICIENTS = 1000  # the largest N d_y tried
_GAIN = 1e-6  # share of the whole gain in the lower objective that is not worth more functions
_SAMPLES_A_CATEGORY = 3  # asked for each value of a Finite domain, to give each a policy of its own


def basis_of(members: np.ndarray) -> Basis:
    """The Chebyshev functions with these multi-indices, whitened."""
    top = int(members.max()) + 1
    return Orthonormal(Chebyshev(top) if members.shape[1] == 1 else Chebyshev(top, index=Listed(members.tolist())))


@dataclass(frozen=True)
class Choice:
    """The basis chosen at one ``x``, and why; `candidates` are all that were tried, `pick` the one chosen."""

    basis: Basis
    words: str
    candidates: tuple[Candidate, ...]
    pick: int
    ledger: Ledger

    @property
    def functions(self) -> int:
        """How large it is, to compare two choices."""
        return len(self.candidates[self.pick].members) if self.candidates else 0


@dataclass(frozen=True)
class Search:
    """What a search works with: the study, its samples split, and the most functions these support."""

    study: Study
    split: Split
    most: int

    @staticmethod
    def on(study: Study, key: Array) -> "Search":
        split = Split.of(study, key, _FITTED_SHARE)
        most = min(split.train.supported(study.noisy), _MOST_COEFFICIENTS // study.problem.sizes[1])
        return Search(study, split, max(1, most))

    def climb(self, x: PyTree, members: np.ndarray, ledger: Ledger, enough: Callable[[list[Candidate]], bool]):
        """Candidates from `members` up until there are enough, or no more; whether a fit failed; the ledger."""
        fits, found = NestedFits(self.study, self.split, ledger), []
        steps = (by_degree if members.shape[1] == 1 else by_margin)(fits, x, members, self.most)
        for candidate in steps if len(self.split.held) >= 2 else ():
            if candidate is None:
                return found, True, fits.ledger
            found.append(candidate)
            if enough(found):
                break
        return found, False, fits.ledger

    def pick(self, candidates: list[Candidate]) -> tuple[int, int]:
        """The smallest set that held-out samples find as good as the best one, and that one."""
        return _smallest_good(np.stack([c.judged for c in candidates]), self.study.noisy)


def choose_basis(study: Study, x: PyTree, key: Array, ledger: Ledger | None = None) -> Choice:
    """A basis for these data at the decision ``x``, and the reason in words.

    Chebyshev functions, more and more of them, are fitted to four fifths of the samples, and judged by the lower
    objective on the last fifth. The smallest set is taken that is within one standard error of the best (where the
    lower level has noise), or within a millionth of the whole gain (where it has none); larger ones are tried only
    while that one is among the largest so far.
    """
    domain, ledger = study.problem.domain, Ledger.empty() if ledger is None else ledger
    if isinstance(domain, Finite) and _categories_observed(study, domain, key):
        words = f"Categorical(): a free policy for each of the {len(domain.values)} contexts."
        return Choice(Categorical(), words, (), 0, ledger)
    search = Search.on(study, key)
    least = TIERS[0][-1] if domain.dimension == 1 else 1
    enough = lambda found: len(found[-1].members) >= least and search.pick(found)[0] < len(found) - 2
    found, failed, ledger = search.climb(x, np.zeros((1, domain.dimension), int), ledger, enough)
    if len(found) < 2:
        one, train = Orthonormal(Chebyshev(1)), search.split.train
        reason = f"{len(train)} samples to fit to, with {train.distinct()} distinct contexts, support no more"
        reason = "the lower level could not be minimised with more functions" if failed else reason
        return Choice(one, f"{one!r}: {reason}.", tuple(found), 0, ledger)
    pick, best = search.pick(found)
    basis, sizes = basis_of(found[pick].members), [len(c.members) for c in found]
    rule = "one standard error" if study.noisy else f"{_GAIN:g} of the gain"
    words = (
        f"{basis!r}: the smallest of N = {', '.join(map(str, sizes))} within {rule} of the best (N = {sizes[best]}) "
        f"lower objective on {len(search.split.held)} held-out samples."
    )
    return Choice(basis, words, tuple(found), pick, ledger)


def _categories_observed(study: Study, domain: Finite, key: Array) -> bool:
    """Whether every value of the domain was seen, with a few samples each."""
    seen = study.lower.contexts().distinct()
    return seen == len(domain.values) and _SAMPLES_A_CATEGORY * seen <= len(study.lower.look(key).samples)


def _smallest_good(values: Float[np.ndarray, "k m"], noisy: bool) -> tuple[int, int]:
    """The first row good enough, and the best one."""
    means = values.mean(axis=1)
    best = int(np.argmin(means))
    slack = np.full(len(values), _GAIN * (means[0] - means[best]))
    if noisy:
        slack = np.maximum(slack, np.std(values - values[best], axis=1) / np.sqrt(values.shape[1]))
    return int(np.argmax(means - means[best] <= slack)), best
