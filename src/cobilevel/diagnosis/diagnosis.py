"""``Diagnosis``: what was found about a basis and the data, how it reads and how it is drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..answer import COLOURS, DPI, html_block, shown_figure, tidy
from ..basis import Basis
from ..covariates import Structure
from ..problem import Domain
from .decay import Decay


@dataclass(frozen=True)
class Advice:
    """What stands out and what to do; the fields after the words are the remedy itself, where there is one."""

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
      observed contexts; `rank`: how many of the `functions` these distinguish; `distinct`: how many contexts there are.
    - `per_function`: samples for each function (distinct contexts, where the lower level has no noise).
    - `mu`, `L`: the smallest and the largest curvature of the reduced lower level at the fitted coefficients.
    - `decay`: how the coefficients of the policy fall, ``None`` where the domain is ``Finite``; `source`: whether that
      comes from exact lower-level solutions or from a fit to the samples; `spread`: in several dimensions, the share of
      the policy that varies with each coordinate of the context, and its error.
    - `misfit`: how far the fitted policy is from the exact one, relative root mean square, where that can be had.
    - `conditions`: those of the convergence theorem for Chebyshev bases, as far as data can check them.
    - `structure`: on a ``Box`` of four dimensions or more, how much of the policy is additive, in pairs of coordinates,
      along few directions or in all of them, and how many functions these take.
    - `advice`: what to change; empty where nothing stands out.
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
        """Of the reduced lower level; also about how many inner steps it takes to relax."""
        return self.L / self.mu if self.mu > 0 else float("inf")

    @property
    def inner_step(self) -> float:
        """A safe step size for gradient descent on the lower level; it is stable below twice that."""
        return 1 / self.L if self.L > 0 else float("inf")

    def predict(self, accuracy: float) -> int:
        """How many functions a policy takes that is this accurate: root mean square, relative to the policy's size."""
        if self.decay is None:
            raise ValueError("predict needs the decay of the policy, which finite contexts do not have: Categorical().")
        return self.decay.predict(accuracy)

    def rows(self) -> list[tuple[str, str]]:
        """What was found, each with its name, in words."""
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
                f"{2 * self.inner_step:.2g}), {self.condition:.2g} of them to relax",
            ),
            ("policy", self.source if self.decay is None else f"{self.decay} ({self.source})"),
        ]
        if self.misfit is not None:
            rows.append(("misfit", f"the fitted policy is {self.misfit:.2g} of its size off the exact one"))
        rows += [] if self.structure is None else [("structure", str(self.structure))]
        rows += [(name, f"{held[state.holds]}: {state.words}") for name, state in self.conditions.items()]
        return rows + ([("advice", str(line)) for line in self.advice] or [("advice", "nothing stands out.")])

    def __repr__(self):
        return "\n".join([f"Diagnosis of {self.basis!r}", *(f"  {name:<11} {words}" for name, words in self.rows())])

    def _repr_html_(self) -> str:
        return html_block(f"Diagnosis of {self.basis!r}", self.rows())

    def plot(self, path: str | Path | None = None) -> Any:
        """Coefficients by degree with the law they follow; written to `path` where one is given, else the figure."""
        if self.decay is None:
            raise ValueError("plot shows the decay of the policy, which finite contexts do not have.")
        return plot_decay(self.decay, self.functions, path)


def plot_decay(decay: Decay, functions: int, path: str | Path | None) -> Any:
    """Coefficients with the law they follow and the size of the basis; written to `path`, or the figure itself.

    A figure that is only written never touches ``pyplot``, whose backend is the user's.
    """
    from matplotlib.figure import Figure

    size = (7, 4.4)  # inches
    figure = shown_figure(*size) if path is None else Figure(figsize=size, layout="constrained")
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
