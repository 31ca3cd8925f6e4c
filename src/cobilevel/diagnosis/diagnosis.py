"""``Diagnosis``: what was found about a basis and the data, how it reads and how it is drawn; and advice: conditions of
the theory that data can check, and what to change about a basis, in words and as objects."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from ..answer import COLOURS, DPI, html_block, shown_figure, tidy, written_figure
from ..basis import (
    Basis,
    BSpline,
    Categorical,
    Chebyshev,
    KernelFeatures,
    Listed,
    Neural,
    Orthonormal,
    Partition,
    PolynomialBasis,
    ProductBasis,
    Rotated,
    Tensor,
    TotalDegree,
    by_component,
)
from ..covariates import Structure, additive_members
from ..inference import CLEAR, NEGLIGIBLE, NOTICED
from ..problem import CONTEXTS_EACH, SAMPLES_EACH, Box, Domain, Finite, Interval
from .decay import MOST_DEGREES, Decay

_ENOUGH = 0.98  # share of the policy's variance from which on a simpler family will do
_CELLS = (4, 20)  # fewest and most by which density is judged
_CONTEXTS_A_CELL = int(np.ceil((2 * CLEAR) ** 2))  # half of them is then clear of chance
_EXPLAINING = {
    "additive": "by functions of single coordinates",
    "pairs": "by those of pairs",
    "directions": "along few directions",
    "all": "by functions of all coordinates",
}


@dataclass(frozen=True)
class Advice:
    """What stands out and what to do; the fields after the words are the remedy itself, if there is one."""

    what: str
    remedy: str
    basis: Basis | None = None
    domain: Domain | None = None
    samples: int | None = None

    def __str__(self):
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class Condition:
    """A condition of the theory: whether the data agree (``None``: they cannot tell), and what was seen."""

    holds: bool | None
    words: str


@dataclass(frozen=True, eq=False)
class Diagnosis:
    r"""What ``diagnose`` found.

    - `M_Phi`: $\max(1, \sup |\Phi|)$ over the domain; `m_Phi`: $\min(1, \lambda_{min} E[\Phi \Phi^T])$ over the
      observed contexts; `rank`: how many of the `functions` they distinguish; `distinct`: how many contexts there are.
    - `per_function`: samples per function (distinct contexts, if the lower level has no noise).
    - `mu`, `L`: the smallest and the largest curvature of the reduced lower level at the fitted coefficients.
    - `decay`: how the coefficients of the policy decay, ``None`` if the domain is ``Finite``; `source`: whether that
      comes from exact lower-level solutions or from a fit to the samples; `spread`: in several dimensions, the share of
      the policy that varies with each coordinate of the context, and its error.
    - `misfit`: how far the fitted policy is from the exact one, relative root mean square, if known.
    - `conditions`: those of the convergence theorem for Chebyshev bases, as far as data can check them.
    - `structure`: on a ``Box`` of four dimensions or more, how much of the policy is additive, in pairs of coordinates,
      along few directions or in all coordinates, and how many functions each takes.
    - `advice`: what to change; empty if nothing stands out.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> diagnosis = cb.diagnose(case.problem, cb.Chebyshev(4), case.train)
    >>> diagnosis.rank, diagnosis.functions
    (4, 4)
    >>> len(diagnosis.advice)  # nothing to change
    0
    """

    basis: Basis
    M_Phi: float
    m_Phi: float  # noqa: N815
    rank: int
    functions: int
    distinct: int
    per_function: float
    mu: float
    L: float
    decay: Decay | None
    source: str
    spread: tuple[tuple[float, float], ...]
    misfit: float | None
    conditions: Mapping[str, Condition]
    advice: tuple[Advice, ...] = ()
    structure: Structure | None = None

    @property
    def condition(self) -> float:
        """The condition number of the reduced lower level; about the number of inner steps it takes to converge."""
        return self.L / self.mu if self.mu > 0 else float("inf")

    @property
    def inner_step(self) -> float:
        """A safe step size for gradient descent on the lower level, which is stable below twice that."""
        return 1 / self.L if self.L > 0 else float("inf")

    def predict(self, accuracy: float) -> int:
        """How many functions this accuracy takes: root mean square error, relative to the policy's size."""
        if self.decay is None:
            raise ValueError(f"predict needs the decay of the policy by degree, which is not known: {self.source}.")
        return self.decay.predict(accuracy)

    def rows(self) -> list[tuple[str, str]]:
        """Names and findings, in words."""
        held = {True: "yes", False: "no", None: "cannot tell"}
        rows = [
            (
                "features",
                f"{self.functions} functions, {self.rank} distinguished by {self.distinct} distinct contexts"
                f"; m = {self.m_Phi:.2g}, M = {self.M_Phi:.3g}",
            ),
            ("samples", f"{self.per_function:.3g} for each function"),
            (
                "lower level",
                f"curvature {self.mu:.2g} to {self.L:.2g}: steps of {self.inner_step:.2g} (stable below "
                f"{2 * self.inner_step:.2g}), {self.condition:.2g} of them to converge",
            ),
            ("policy", self.source if self.decay is None else f"{self.decay} ({self.source})"),
        ]
        if self.misfit is not None:
            rows.append(("misfit", f"the fitted policy differs from the exact one by {self.misfit:.2g} of its size"))
        rows += [] if self.structure is None else [("structure", str(self.structure))]
        rows += [(name, f"{held[state.holds]}: {state.words}") for name, state in self.conditions.items()]
        return rows + ([("advice", str(line)) for line in self.advice] or [("advice", "nothing stands out.")])

    def __repr__(self):
        return "\n".join([f"Diagnosis of {self.basis!r}", *(f"  {name:<11} {words}" for name, words in self.rows())])

    def _repr_html_(self) -> str:
        return html_block(f"Diagnosis of {self.basis!r}", self.rows())

    def plot(self, path: str | Path | None = None) -> Any:
        """Draws coefficients by degree with the law they follow; writes to `path` if given, else returns the figure."""
        if self.decay is None:
            raise ValueError(f"plot shows the decay of the policy by degree, which is not known: {self.source}.")
        return plot_decay(self.decay, self.functions, path)


def plot_decay(decay: Decay, functions: int, path: str | Path | None) -> Any:
    """Coefficients with the law they follow and the size of the basis; written to `path`, or the figure itself.

    A figure that is only written never touches ``pyplot``, whose backend is the user's.
    """
    figure = (shown_figure if path is None else written_figure)(7, 4.4)
    _draw_decay(figure.add_subplot(), decay, functions)
    if path is None:
        return figure
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path


def _draw_decay(axis: Any, decay: Decay, functions: int) -> None:
    from matplotlib.ticker import MaxNLocator

    degrees, tiny = np.arange(len(decay.coefficients)), 0.03 * decay.plateau or np.finfo(float).tiny
    last = min(len(degrees), max(decay.length * 5 // 4 + 6, min(functions, 64) + 4))
    shown = np.maximum(decay.coefficients[:last], tiny)
    axis.semilogy(degrees[:last], shown, "o", ms=4, color=COLOURS[0], label="coefficients of the policy")
    if decay.scale:
        k = np.arange(1, last)
        label = f"{decay.rho:.3g}$^{{-k}}$" if decay.kind == "geometric" else f"$k^{{-{decay.order:.2g}}}$"
        seen = decay.law(k) > tiny
        axis.semilogy(k[seen], decay.law(k)[seen], color=COLOURS[1], lw=1.3, label=f"the law they follow, {label}")
    if decay.resolved:
        axis.semilogy(degrees[:last], decay.errors[:last], color=COLOURS[4], lw=1, ls="--", label="noise or rounding")
    words, right = "total degree", last
    if decay.dimension == 1:
        words, right = "degree", max(last, functions)
        axis.axvline(functions - 0.5, color=COLOURS[2], lw=1, label=f"the basis, N = {functions}")
    axis.set(xlabel=words, ylabel="size", title=f"Coefficients by {words}", xlim=(-0.5, right))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if decay.kind == "algebraic":
        axis.set(xscale="log", xlim=(0.9, right))
    axis.legend(frameon=False)
    tidy(axis)


@dataclass(frozen=True)
class Seen:
    """What advice rests on besides the diagnosis.

    `u`: contexts on the reference cube; `spectrum`: singular values of the features; `noisy`: whether samples have to
    average noise out; `supported`: how many functions they support.
    """

    domain: Domain
    u: Float[np.ndarray, "n d"]
    spectrum: Float[np.ndarray, " N"]
    noisy: bool
    supported: int


# -- conditions of the convergence theorem for Chebyshev bases


def conditions_of(domain: Domain, u: Float[np.ndarray, "n d"], decay: Decay | None) -> dict[str, Condition]:
    """Density and coverage of the contexts (on the reference cube), and whether the policy is analytic."""
    if isinstance(domain, Finite):
        return {"density": Condition(True, "contexts are finite.")}
    if not isinstance(domain, Interval | Box):
        return {}  # the theorem is one on polynomials over a box
    slack = max(0.1, 10 / len(u))  # a share that may be empty by chance; half of the domain would say nothing
    full = None if slack > 0.5 else bool(np.all(1 - np.ptp(u, axis=0) / 2 <= slack))
    filled = Condition(full, f"contexts fill {_covered(u)} of the domain.")
    return {"density": _density(u), "coverage": filled, "analytic": _analytic(decay)}


def _density(u: Float[np.ndarray, "n d"]) -> Condition:
    cells = min(len(u) // _CONTEXTS_A_CELL, _CELLS[1])
    if cells < _CELLS[0]:
        return Condition(None, "too few contexts.")
    thin = int(min(np.histogram(column, cells, (-1, 1))[0].min() for column in u.T))
    even = len(u) / cells
    words = f"the emptiest of {cells} cells holds {thin / even:.0%} of an even share."
    return Condition(bool(thin + 3 * np.sqrt(thin + 1) >= even / 2), words)


def _covered(u: Float[np.ndarray, "n d"]) -> str:
    """How much of each side of the reference cube contexts fill, in words."""
    return ", ".join(f"{share:.0%}" for share in np.ptp(u, axis=0) / 2)


def _analytic(decay: Decay | None) -> Condition:
    kind = None if decay is None else decay.kind
    if kind in ("geometric", "finite"):
        return Condition(True, "no sign against it.")
    if decay is None or kind != "algebraic":
        return Condition(None, "too little evidence.")
    places = ", ".join(f"xi = {kink.location:.3g}" for kink in decay.kinks)
    return Condition(False, f"the policy has a kink near {places}." if places else "the policy has a kink.")


# -- advice


def advise(found: Diagnosis, seen: Seen) -> tuple[Advice, ...]:
    """What stands out, the gravest first."""
    said = []
    if found.mu < 0:
        what = f"the lower level is not convex at the fitted policy (smallest curvature {found.mu:.2g})"
        said.append(Advice(what, "add a multiple of |y|^2 to it, or look at another x"))
    for about in (_about_coverage, _about_samples, _about_dependence, _about_structure, _about_decay):
        said += about(found, seen)
    return tuple(said)


def _plain(basis: Basis) -> Basis:
    """The functions themselves, without the whitening around them."""
    return basis.basis if isinstance(basis, Orthonormal) else basis


def _polynomials(n: int, domain: Domain) -> Chebyshev:
    return Chebyshev(n, index=Tensor() if domain.dimension == 1 else TotalDegree())


def _largest(basis: Basis, domain: Domain, most: int) -> Basis:
    """The largest basis of the same kind with at most that many functions; Chebyshev where there is no such kind."""
    plain = _plain(basis)
    bare = isinstance(plain, ProductBasis) and not isinstance(basis, Orthonormal)
    if not isinstance(plain, ProductBasis) or isinstance(plain.index, Listed):
        plain = _polynomials(1, domain)
    n = 1
    while n < most and _count(replace(plain, n=n + 1), domain) <= most:
        n += 1
    return replace(plain, n=n) if bare else Orthonormal(replace(plain, n=n))


def _count(basis: Basis, domain: Domain) -> int:
    """How many functions a basis made by ``_largest`` has."""
    return by_component(_plain(basis), domain).count(domain)


def _about_coverage(found: Diagnosis, seen: Seen) -> list[Advice]:
    if "coverage" not in found.conditions or found.conditions["coverage"].holds is not False:
        return []
    lo, hi = seen.u.min(axis=0), seen.u.max(axis=0)
    slack = 0.01 * (hi - lo) + 1e-6  # a little wider than what contexts fill
    ends = np.clip(np.stack([lo - slack, hi + slack]), -1, 1)
    low, high = (np.asarray(end, dtype=float) for end in seen.domain.bounds)
    lo, hi = low + (high - low) * (ends + 1) / 2
    box = Box(lo, hi) if seen.domain.shape else Interval(lo[0], hi[0])
    better = Orthonormal(_plain(found.basis))
    remedy = f"give the problem the domain {box!r}, or use {better!r}"
    return [Advice(f"contexts fill only {_covered(seen.u)} of the domain", remedy, basis=better, domain=box)]


def _about_samples(found: Diagnosis, seen: Seen) -> list[Advice]:
    each, unit = (SAMPLES_EACH, "samples") if seen.noisy else (CONTEXTS_EACH, "distinct contexts")
    if found.per_function >= each:
        return []
    less = None
    if not isinstance(_plain(found.basis), Categorical) and found.functions > 1:
        less = _largest(found.basis, seen.domain, seen.supported)
    fewer = f"use at most N = {_count(less, seen.domain)}, {less!r}, or " if less is not None else "take "
    wanted = each * found.functions
    remedy = f"expect overfitting; {fewer}{wanted} {unit}"
    return [Advice(f"{found.per_function:.2g} {unit} for each function", remedy, basis=less, samples=wanted)]


def _about_dependence(found: Diagnosis, seen: Seen) -> list[Advice]:
    if seen.spectrum[-1] >= NOTICED * seen.spectrum[0] or isinstance(found.basis, Orthonormal | Categorical):
        return []
    cut = f", {found.rank} of {found.functions} distinguished" if found.rank < found.functions else ""
    what, better = f"the features are nearly dependent (m = {found.m_Phi:.1g}{cut})", Orthonormal(found.basis)
    return [Advice(what, f"use {better!r}: the same functions, orthonormalised", basis=better)]


def _about_decay(found: Diagnosis, seen: Seen) -> list[Advice]:
    """What the coefficients say about the basis: the wrong kind, in too many coordinates, too small, or too large."""
    plain, d, decay = _plain(found.basis), seen.domain.dimension, found.decay
    if decay is None:
        return []
    beyond = decay.tail(found.functions) / max(decay.size, 1e-300)
    poor = found.misfit is not None and found.misfit > NOTICED and (not seen.noisy or (d == 1 and beyond > NOTICED / 2))
    if decay.kinks and (poor or not isinstance(plain, BSpline | Partition)):
        return [_about_kink(found, decay, seen)]
    said = _about_idle_coordinates(found, plain, d)
    if (isinstance(plain, PolynomialBasis) or poor) and decay.kind != "unresolved":
        said += _about_size(found, decay, seen, poor)
    return said


def _about_kink(found: Diagnosis, decay: Decay, seen: Seen) -> Advice:
    kink = decay.kinks[0]
    name, degree = ("a kink", 3) if kink.power else ("a jump", 1)
    local = BSpline(max(degree + 1, min(MOST_DEGREES, seen.supported)), degree=degree)
    remedy = f"polynomials converge slowly; use {local!r}, or more cells there"
    has = "seems to have" if found.misfit is None else "has"  # in noise, a sharp bend looks the same
    return Advice(f"the policy {has} {name} near xi = {kink.location:.3g}", remedy, basis=local)


def _about_idle_coordinates(found: Diagnosis, plain: Basis, d: int) -> list[Advice]:
    idle = [j for j, (share, error) in enumerate(found.spread) if share <= max(1.5 * error, NEGLIGIBLE)]
    if not 0 < len(idle) < d or not isinstance(plain, ProductBasis):
        return []
    rows = [row for row in plain.index.table(plain.n, d) if not any(row[j] for j in idle)]
    if len(rows) >= found.functions:
        return []
    less = replace(plain, index=Listed(rows))
    less = Orthonormal(less) if isinstance(found.basis, Orthonormal) else less
    what = f"the policy does not vary with coordinate {', '.join(map(str, idle))} of the context"
    return [Advice(what, f"{len(rows)} functions of the others are enough: {less!r}", basis=less)]


def _about_size(found: Diagnosis, decay: Decay, seen: Seen, poor: bool) -> list[Advice]:
    said, d = [], seen.domain.dimension
    needed, fitted = comb(decay.length - 1 + d, d), found.misfit is None
    wanted = min(seen.supported, decay.predict(NEGLIGIBLE) if poor else needed)
    if (poor or (seen.noisy and fitted and decay.resolved)) and wanted > found.functions:
        more = Orthonormal(_largest(_polynomials(1, seen.domain), seen.domain, wanted))
        what = f"{needed} coefficients stand out from the noise, but the basis has {found.functions}"
        what = f"{found.functions} functions miss {found.misfit:.1%} of the policy" if poor else what
        said.append(Advice(what, f"use {more!r}", basis=more))
    large = found.functions > 1.25 * needed + 2
    if large and isinstance(_plain(found.basis), PolynomialBasis) and decay.resolved and needed < seen.supported:
        less = _largest(found.basis, seen.domain, needed) if d == 1 else _polynomials(decay.length, seen.domain)
        what = f"coefficients beyond {needed} are {'noise' if fitted else 'rounding'}"
        said.append(Advice(f"{what}, but the basis has {found.functions}", f"{less!r} is enough", basis=less))
    return said


def _about_structure(found: Diagnosis, _: Seen) -> list[Advice]:
    """In many dimensions: the simplest family that explains nearly all, where it takes fewer functions."""
    structure = found.structure
    if structure is None or not structure.varies or isinstance(_plain(found.basis), KernelFeatures | Rotated | Neural):
        return []
    good = {name for name, (share, error) in structure.explained.items() if share + error >= _ENOUGH}
    name = next(name for name in ("additive", "directions", "pairs", "all") if name in good)
    if found.functions <= structure.functions[name]:
        return []
    degree = structure.degree
    if name == "directions":
        better = structure.directions.forgotten()
    elif name == "all":
        better = KernelFeatures(structure.functions["all"])
    else:
        better = Chebyshev(degree + 1, index=Listed(additive_members(structure.dimension, degree, name == "pairs")))
    shares = ", ".join(f"{_EXPLAINING[one]} {share[0]:.0%}" for one, share in structure.explained.items())
    what = f"of the policy's variance on held-out samples, {shares} is explained"
    remedy = f"{structure.functions[name]} functions are enough: {Orthonormal(better)!r}"
    return [Advice(what, remedy, basis=Orthonormal(better))]
