"""A basis grown from the data: how many functions, and in several dimensions which ones.

At one decision ``x`` the lower level is fitted with more and more Chebyshev functions, each fit going on from the one
before, and judged twice: by the lower objective on samples held out (do more functions buy anything?), and, where a
goal is given, by how much the upper objective would still fall if its gradient were that of the largest fit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..basis.base import Basis
from ..basis.families import Chebyshev
from ..basis.given import Categorical
from ..basis.index_sets import Listed
from ..basis.whitening import Orthonormal
from ..derivatives.ledger import Ledger
from ..problem.data import Data, Product, levels, without_idle
from ..problem.domain import Finite
from ..problem.problem import Problem
from ..problem.study import lower_depends_on_noise
from ..reduction.batches import contexts_of
from .nested_fits import TIERS, Bench, Rows, Rung, frontier, ladder, rows_of

_COEFFICIENTS = 1000  # the largest N d_y tried


_SAMPLES_EACH, _CONTEXTS_EACH = 8, 2  # asked for each function: samples where there is noise, and distinct contexts


_GAIN = 1e-6  # share of the whole gain in the lower objective that is not worth more functions


def basis_of(members: np.ndarray) -> Basis:
    """The Chebyshev functions with these multi-indices, whitened."""
    top = int(members.max()) + 1
    return Orthonormal(Chebyshev(top) if members.shape[1] == 1 else Chebyshev(top, index=Listed(members.tolist())))


@dataclass(frozen=True)
class Choice:
    """The basis chosen at one ``x``, and why; `rungs` are all that were tried, `pick` the one chosen."""

    basis: Basis
    words: str
    rungs: tuple[Rung, ...]
    pick: int
    ledger: Ledger

    @property
    def functions(self) -> int:
        """How large it is, to compare two choices."""
        return len(self.rungs[self.pick].members) if self.rungs else 0


class Hunt(eqx.Module):
    """What a search works with: samples split in three; whether the lower level is noisy; the functions they bear."""

    rows: Rows
    noisy: bool = eqx.field(static=True)
    most: int = eqx.field(static=True)
    distinct: int = eqx.field(static=True)

    @staticmethod
    def on(problem: Problem, samples: Data, key: Array) -> "Hunt":
        upper, lower = levels(without_idle(samples))
        rows = rows_of(lower, key)
        noisy = lower_depends_on_noise(problem, samples) and not isinstance(lower, Product)
        size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
        cut = max(1, len(rows) * 4 // 5)
        train, held = rows.rows(slice(0, cut)), rows.rows(slice(cut, None))
        seen = len(np.unique(np.asarray(contexts_of(lower).xi), axis=0))
        distinct = min(seen, len(np.unique(np.asarray(train.xi), axis=0)))
        supported = min(distinct // _CONTEXTS_EACH, len(train) // _SAMPLES_EACH if noisy else distinct)
        parts = Rows(train, held, rows if upper is lower else rows_of(upper, key))
        return Hunt(parts, noisy, max(1, min(supported, _COEFFICIENTS // size)), distinct)

    def climb(self, problem: Problem, x: PyTree, members: np.ndarray, ledger: Ledger, enough: Callable[[list], bool]):
        """Rungs from `members` up until there are enough, or no more; whether a fit failed; the ledger."""
        bench, rungs = Bench(problem, self.rows, ledger), []
        steps = (ladder if members.shape[1] == 1 else frontier)(bench, x, members, self.most)
        for rung in steps if len(self.rows.held) >= 2 else ():
            if rung is None:
                return rungs, True, bench.ledger
            rungs.append(rung)
            if enough(rungs):
                break
        return rungs, False, bench.ledger

    def pick(self, rungs: list[Rung]) -> tuple[int, int]:
        """The smallest set that held-out samples find as good as the best one, and that one."""
        return _smallest_good(np.stack([r.judged for r in rungs]), self.noisy)


def choose_basis(problem: Problem, samples: Data, x: PyTree, key: Array, ledger: Ledger | None = None) -> Choice:
    """A basis for these data at the decision ``x``, and the reason in words.

    Chebyshev functions, more and more of them, are fitted to four fifths of the samples, and judged by the lower
    objective on the last fifth. The smallest set is taken that is within one standard error of the best (where the
    lower level has noise), or within a millionth of the whole gain (where it has none); larger ones are tried only
    while that one is among the largest so far.
    """
    domain, ledger = problem.domain, Ledger.empty() if ledger is None else ledger
    if isinstance(domain, Finite):
        lower = levels(samples)[1]
        seen = len(np.unique(np.asarray(contexts_of(lower).xi), axis=0))
        if seen == len(domain.values) and 3 * seen <= len(rows_of(lower, key)):
            words = f"Categorical(): a free policy for each of the {len(domain.values)} contexts."
            return Choice(Categorical(), words, (), 0, ledger)
    hunt = Hunt.on(problem, samples, key)
    least = TIERS[0][-1] if domain.dimension == 1 else 1
    enough = lambda rungs: len(rungs[-1].members) >= least and hunt.pick(rungs)[0] < len(rungs) - 2
    rungs, failed, ledger = hunt.climb(problem, x, np.zeros((1, domain.dimension), int), ledger, enough)
    if len(rungs) < 2:
        one = Orthonormal(Chebyshev(1))
        count = len(hunt.rows.train) + len(hunt.rows.held)
        reason = f"{count} samples with {hunt.distinct} distinct contexts support no more"
        reason = "the lower level could not be minimised with more functions" if failed else reason
        return Choice(one, f"{one!r}: {reason}.", tuple(rungs), 0, ledger)
    pick, best = hunt.pick(rungs)
    basis, sizes = basis_of(rungs[pick].members), [len(r.members) for r in rungs]
    rule = "one standard error" if hunt.noisy else f"{_GAIN:g} of the gain"
    words = (
        f"{basis!r}: the smallest of N = {', '.join(map(str, sizes))} within {rule} of the best (N = {sizes[best]}) "
        f"lower objective on {len(hunt.rows.held)} held-out samples."
    )
    return Choice(basis, words, tuple(rungs), pick, ledger)


def _smallest_good(values: Float[np.ndarray, "k m"], noisy: bool) -> tuple[int, int]:
    """The first row good enough, and the best one."""
    means = values.mean(axis=1)
    best = int(np.argmin(means))
    slack = np.full(len(values), _GAIN * (means[0] - means[best]))
    if noisy:
        slack = np.maximum(slack, np.std(values - values[best], axis=1) / np.sqrt(values.shape[1]))
    return int(np.argmax(means - means[best] <= slack)), best
