"""A basis chosen around one decision ``x``: how many functions, in several dimensions which ones, in many dimensions of
which family.

Functions are added while what is left without them stands out of the noise. The most that is tried is what the samples
support (``Samples.supported``). In many dimensions products over the coordinates are compared with functions along few
directions and those of a kernel: tuned by regression on the responses of a first fit, and judged by the lower objective
on samples held out.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..basis import (
    Axes,
    Basis,
    BSpline,
    Categorical,
    Chebyshev,
    KernelFeatures,
    Orthonormal,
    Rotated,
    TotalDegree,
    basis_of,
)
from ..covariates import (
    CLEARLY,
    COUNTS,
    FEWEST_DIMENSIONS,
    FITTED,
    MOST_COEFFICIENTS,
    SETTLED,
    FirstFit,
    Fits,
    KernelMap,
    Projected,
    orthonormalising,
    refined,
    refreshed,
    tune_directions,
    tune_kernel,
)
from ..derivatives import flattened
from ..problem import LOOK_ROWS, SAMPLES_EACH, Box, Finite, Periodic
from ..study import Study
from .growth import Search
from .selection import ROUNDS, ForwardSelection

FEW_SAMPLES = 400  # a rough look: fewer do not tell families apart, and so many find about where a solution lies
_STABLE = 3  # polynomials are stable up to about the square root of so many times the samples
_SPLINES_EACH = 1.5  # splines that do what a polynomial does
_SAMPLES_A_CATEGORY = 3  # asked for each value of a Finite domain, to give each a policy of its own

_NEARNESS = {
    "isotropic": "all coordinates alike",
    "coordinates": "coordinates by relevance",
    "directions": "directions by relevance",
}


# -- families in many dimensions


@dataclass(frozen=True)
class Family:
    """A family of functions on the reference cube: its name, their values, how many; where it is learned, what was, and
    how that is done from a share of a fit."""

    name: str
    features: Callable[[np.ndarray], np.ndarray]
    count: int
    learned: Any = None
    learn: Callable[[FirstFit, float], Any] | None = None

    def learned_from(self, fit: FirstFit, share: float) -> "Family":
        assert self.learn is not None  # products are all there is already
        learned = self.learn(fit, share)
        return replace(self, features=learned.features, learned=learned)

    @property
    def basis(self) -> Basis:
        """What was learned as a basis, whitened."""
        if isinstance(made := self.learned, Projected):
            return Orthonormal(made.kept_in(Rotated(made.k, Chebyshev(made.degree + 1, index=TotalDegree()))))
        return Orthonormal(made.kept_in(KernelFeatures(self.count, metric=made.settings.metric)))


def _learnable(fit: FirstFit, most: int) -> list[Family]:
    """The best of each kind that is learned, tuned on the part that is fitted to."""
    seen = fit.responses.part(0.0, FITTED)
    most = max(2, min(most, len(seen) // SAMPLES_EACH, COUNTS[-1]))
    settings, count, _, outer = tune_kernel(seen, [n for n in COUNTS if n <= most] or [most])

    def kernel(fit: FirstFit, share: float) -> KernelMap:
        rows = fit.responses.part(0.0, share)
        return KernelMap.of(refreshed(rows, settings), rows.u, count)

    made, name = KernelMap.of(settings, seen.u, count), f"functions of a kernel ({_NEARNESS[settings.metric]})"
    families = [Family(name, made.features, count, made, kernel)]
    tuned = tune_directions(*fit.leading(FITTED).to_tune(len(seen)), outer, most)
    if tuned is not None:
        along = tuned[0]
        name = f"polynomials along {along.k} direction{'s' * (along.k > 1)}"
        learn = lambda fit, share: refined(fit.leading(share), along)
        families.insert(0, Family(name, along.features, along.size, along, learn))
    return families


def _judged(fits: Fits, x: Float[np.ndarray, " dx"], fit: FirstFit, family: Family) -> Float[np.ndarray, " m"]:
    """The lower objective on samples held out, of the policy in these functions fitted to the others."""
    shares, cut = fit.responses.shares, round(FITTED * len(fit.responses))
    table = family.features(fit.responses.u)
    table = table @ orthonormalising(table[:cut], shares[:cut])
    project = lambda target: table @ (table[:cut].T @ (shares[:cut, None] * target[:cut]))
    y = project(fit.target)
    best, slopes = fits.rows.lower_slopes(x, y)
    for _ in range(ROUNDS):
        y = project(y - slopes @ fit.inverse)
        values, slopes = fits.rows.lower_slopes(x, y)
        gain = float(shares[:cut] @ (best - values)[:cut])
        if not gain > 0:
            break
        best = values
        if gain <= SETTLED * abs(float(shares[:cut] @ best[:cut])):
            break
    return best[cut:]


def _decide(
    families: Sequence[Family], judged: Float[np.ndarray, "k m"], held: Float[np.ndarray, " m"], errors_apart: float
) -> tuple[int, str]:
    """The first family that is within so many standard errors of the best one; the comparison in words."""
    held = held / held.sum()
    means = judged @ held
    best = int(np.nanargmin(means)) if np.isfinite(means).any() else 0
    apart = judged - judged[best]
    errors = np.sqrt((apart - (apart @ held)[:, None]) ** 2 @ held**2)
    pick = int(np.argmax(means - means[best] <= errors_apart * errors))
    parts = [f"{one.name} {mean:.4g} ({one.count} functions)" for one, mean in zip(families, means, strict=True)]
    others = ", ".join(f"{error:.2g}" for k, error in enumerate(errors) if k != best)
    return pick, (
        f"The lower objective on {len(held)} samples held out: {', '.join(parts)}; standard errors of the differences "
        f"from the least: {others}."
    )


def _compare_families(
    selection: ForwardSelection, x: Float[np.ndarray, " dx"], members: np.ndarray, kept: Family | None = None
) -> tuple[str, Family | None] | None:
    """Products over the coordinates against other families; or what was `kept` from another ``x`` against the same
    family learned at this one. The comparison in words, and the family to take where that is not the first of them.

    ``None`` where families are not tried: in few dimensions, with few samples, or where each context meets all data.
    """
    domain, fits = selection.study.problem.domain, selection.fits
    many = isinstance(domain, Box) and domain.dimension >= FEWEST_DIMENSIONS
    if not many or fits.together > 1 or len(fits.u) < FEW_SAMPLES:
        return None
    fit = FirstFit.at(fits, x, members)
    if fit is None:
        return None
    if kept is None:
        first = Family("products over the coordinates", lambda u: fits.axes.table(u, members), len(members))
        families, errors_apart = [first, *_learnable(fit, selection.most)], 1.0
    else:
        anew = replace(kept, name=f"{kept.name}, learned anew").learned_from(fit, FITTED)
        families, errors_apart = [kept, anew], CLEARLY
    judged = np.stack([_judged(fits, x, fit, family) for family in families])
    pick, words = _decide(families, judged, fit.responses.shares[-judged.shape[1] :], errors_apart)
    return words, families[pick].learned_from(fit, 1.0) if pick else None


# -- the choice


@dataclass(frozen=True)
class Choice:
    """The basis chosen at one ``x``, and why; `members`: the products it was chosen from; `selection` is what these
    were found with, to be used again at another ``x``; `family`: its functions, where they are no products over the
    coordinates; `spent`: what it cost, and those before it."""

    basis: Basis
    words: str
    spent: Counter
    members: Int[np.ndarray, "N d"] = field(default_factory=lambda: np.zeros((0, 1), int))
    selection: ForwardSelection | None = None
    family: Family | None = None

    def replaces(self, before: "Choice") -> bool:
        """Whether to solve again with this one, chosen where another led: it has more functions, or others."""
        if self.family is None and before.family is None:
            return len(self.members) > len(before.members)
        return self.family is not before.family

    def with_family(self, family: Family, words: str) -> "Choice":
        return replace(self, basis=family.basis, words=words, family=family)


def choose_basis(
    study: Study, x: PyTree, key: Array, before: Choice | None = None, policy: Callable | None = None
) -> Choice:
    """A basis for these data around the decision ``x``, and the reason in words.

    The functions natural to each coordinate (``Axes``), and products of them, are added while what is left without
    them stands out of the noise, of the policy or of what moves the decision (``selection``), at ``x`` or at a few
    points nearby. Never fewer than ``x`` has coordinates, where the samples support so many. `before`: a choice made
    for the same study with the same key, whose functions are kept and whose costs count too; `policy`: what it led to.
    """
    domain, spent = study.problem.domain, Counter() if before is None else before.spent
    if isinstance(domain, Finite):
        found = _of_categories(study, domain, key, spent)
        if found is not None:
            return found
    if study.problem.sizes[1] > MOST_COEFFICIENTS:
        basis = basis_of(members := Axes.of(domain).up_to(0), domain)
        words = f"{basis!r}: a y of {study.problem.sizes[1]} numbers is too large for tests."
        return Choice(basis, words, spent, members)
    at = flattened(x)
    if study.noisy and study.constrained is not None and study.constrained.smoothing is not None:
        return _by_held_out(study, at, key, spent)
    selection = None if before is None else before.selection
    selection = ForwardSelection(study, key, spent) if selection is None else selection
    fits = selection.fits
    fits.forget(None if policy is None else fits.rows.table(policy(fits.samples.xi)))
    if before is not None and before.family is not None:  # kept while the same one learned here is not clearly better
        compared = _compare_families(selection, at, before.members, before.family)
        if compared is None or compared[1] is None:
            return before
        return before.with_family(compared[1], f"{before.words} Learned anew where that led: {compared[0]}")
    members, words = selection.at(at, key, None if before is None else before.members)
    basis, count = basis_of(members, domain), len(members)
    if fits.axes.nested and not isinstance(domain, Periodic) and _STABLE * len(fits.u) < count**2:
        basis = Orthonormal(BSpline(min(selection.most, round(_SPLINES_EACH * count))))
        words = f"{words} Splines, since {count} polynomials would be unstable near the ends of the interval."
    choice = Choice(basis, f"{basis!r}: {words}", spent, members, selection)
    # where no more functions are found than before, families were compared already
    compared = _compare_families(selection, at, members) if before is None or count > len(before.members) else None
    if compared is None:
        return choice
    comparison, family = compared
    if family is None:
        return replace(choice, words=f"{choice.words} {comparison}")
    return choice.with_family(family, f"{family.basis!r}, learned from the samples. {comparison}")


def _by_held_out(study: Study, x: Float[np.ndarray, " dx"], key: Array, spent: Counter) -> Choice:
    """As few functions as held-out samples find as good as more: under a barrier, what is left has forces of the
    constraints in it, and tests of it against noise say little."""
    search, axes = Search(study, key, spent), Axes.of(study.problem.domain)
    members, most = search.as_good_as_any(x, axes.up_to(0)) or (axes.up_to(1), len(axes.up_to(1)))
    basis = basis_of(members, study.problem.domain)
    sizes = f"of up to {most} functions, as good on {search.held} samples held out as any"
    return Choice(basis, f"{basis!r}: {sizes}, with the constraints smoothed.", spent, members)


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
    return Choice(Categorical(), words, spent)
