"""A basis chosen around one decision ``x``: how many functions, in several dimensions which ones, in many dimensions of
which family.

Functions are added while what is left without them stands out from the noise. The most that is tried is what the
samples support (``Samples.supported``).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Array, Int, PyTree

from ..basis import Axes, Basis, BSpline, Categorical, Orthonormal, basis_of, by_component
from ..covariates import Family, compare_families
from ..derivatives import flattened
from ..problem import LOOK_ROWS, Finite, Periodic
from ..reduction import is_formed
from ..study import Study
from .doubling import level_by_doubling
from .growth import Search
from .selection import ForwardSelection

# Polynomials are stable up to about the square root of so many times the samples; splines that do what one of them can.
_STABLE, _SPLINES_EACH = 3, 1.5
_SAMPLES_A_CATEGORY = 3  # asked for each value of a Finite domain, to give each a policy of its own


@dataclass(frozen=True)
class Choice:
    """The basis chosen at one ``x``, and why; `members`: the products it was chosen from; `selection` found them, and
    is used again at another ``x``; `family`: its functions, if they are not products over the coordinates; `spent`: the
    cost of this choice and of those before it; `breaks`: where they may jump; `level`: the highest of its functions,
    where they are all those up to one."""

    basis: Basis
    words: str
    spent: Counter
    members: Int[np.ndarray, "N d"] = field(default_factory=lambda: np.zeros((0, 1), int))
    selection: ForwardSelection | None = None
    family: Family | None = None
    breaks: tuple[float, ...] = ()
    level: int | None = None

    def replaces(self, before: "Choice") -> bool:
        """Whether to solve again with this one, chosen at the solution of another: it has more functions, or others."""
        if self.family is None and before.family is None:
            return len(self.members) > len(before.members) or self.breaks != before.breaks
        return self.family is not before.family

    def with_family(self, family: Family, words: str) -> "Choice":
        return replace(self, basis=family.basis, words=words, family=family)


def choose_basis(
    study: Study, x: PyTree, key: Array, before: Choice | None = None, policy: Callable | None = None
) -> Choice:
    """A basis for these data around the decision ``x``, and the reason in words.

    The functions natural to each coordinate (``Axes``), and products of them, are added while what is left without
    them stands out from the noise, in the policy or the hypergradient (``selection``), at ``x`` or at a few points
    nearby. Never fewer than ``x`` has coordinates, if the samples support that many. `before`: a choice made for the
    same study with the same key, whose functions are kept and whose costs count too; `policy`: the policy it led to.
    """
    domain, spent = study.problem.domain, Counter() if before is None else before.spent
    if isinstance(domain, Finite):
        found = _of_categories(study, domain, key, spent)
        if found is not None:
            return found
    at = flattened(x)
    if not is_formed(1, study.problem.sizes, crossed=study.lower.crossed):
        least = None if before is None else before.level
        level, words = level_by_doubling(study, at, spent, key, least, policy)
        basis = basis_of(members := Axes.of(domain).up_to(level), domain)
        return Choice(basis, f"{basis!r}: {words}.", spent, members, level=level)
    if study.noisy and study.constrained is not None and study.constrained.smoothing is not None:
        # By samples held out: under a barrier, what is left has forces of the constraints in it, and tests of it
        # against noise say little.
        search, axes = Search(study, key, spent), Axes.of(domain)
        few = axes.up_to(int(study.lower.contexts().distinct() >= len(axes.up_to(1))))
        members, most = search.as_good_as_any(at, axes.up_to(0)) or (few, len(few))
        basis = basis_of(members, domain)
        sizes = f"as good on {search.held} held-out samples as any basis of up to {most} functions, and fine enough for"
        return Choice(basis, f"{basis!r}: {sizes} the corners of the smoothed constraints.", spent, members)
    selection = None if before is None else before.selection
    selection = ForwardSelection(study, key, spent) if selection is None else selection
    if before is not None and before.family is None and selection.is_full(before.members):
        return before
    fits = selection.fits
    fits.forget(None if policy is None else fits.rows.table(policy(fits.samples.xi)))
    if before is not None and before.family is not None:  # kept while the same one learned here is not clearly better
        compared = compare_families(fits, at, before.members, selection.most, before.family)
        if compared is None or compared[1] is None:
            return before
        return before.with_family(compared[1], f"{before.words} Learned again at the new x: {compared[0]}")
    members, words = selection.at(at, key, None if before is None else before.members)
    fits = selection.fits
    basis, count, pieces = basis_of(members, fits.domain), len(members), fits.axes.pieces
    if fits.axes.nested and not isinstance(domain, Periodic) and _STABLE * selection.looked * pieces < count**2:
        splines = BSpline(min(selection.most, round(_SPLINES_EACH * count)) // pieces)
        basis = Orthonormal(by_component(splines, fits.domain))
        words = f"{words} Splines, since {count} polynomials would be unstable near the ends of the interval."
    choice = Choice(basis, f"{basis!r}: {words}", spent, members, selection, breaks=selection.breaks)
    # where no more functions are found than before, families were compared already
    anew = before is None or count > len(before.members)
    compared = compare_families(fits, at, members, selection.most) if anew else None
    if compared is None:
        return choice
    comparison, family = compared
    if family is None:
        return replace(choice, words=f"{choice.words} {comparison}")
    return choice.with_family(family, f"{family.basis!r}, learned from the samples. {comparison}")


def _of_categories(study: Study, domain: Finite, key: Array, spent: Counter) -> Choice | None:
    """A free policy for each value, if the observed values were each observed a few times."""
    seen, count = study.lower.contexts().distinct(), len(domain.values)
    known = None if study.lower.crossed else study.lower.count  # joint samples need not be looked at to be counted
    looked = len(study.lower.look(key).samples) if known is None else min(LOOK_ROWS, known)
    if _SAMPLES_A_CATEGORY * seen > looked and study.noisy and domain.labels is None:  # strings have no order
        return None
    words = f"Categorical(): a free policy for each of the {count} contexts."
    if seen < count:
        words = (
            f"Categorical(): a free policy for each of the {seen} contexts that were observed; at the other "
            f"{count - seen} there are no samples to learn it from, so it is y0."
        )
    return Choice(Categorical(), words, spent)
