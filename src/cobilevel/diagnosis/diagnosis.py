"""diagnosis.diagnosis."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..basis.base import Basis
from ..problem.domain import Domain
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
      observed contexts; `rank`: how many of the `functions` these tell apart; `distinct`: how many contexts there are.
    - `per_function`: samples for each function (distinct contexts, where the lower level has no noise).
    - `mu`, `L`: the smallest and the largest curvature of the reduced lower level at the fitted coefficients.
    - `decay`: how the coefficients of the policy fall, ``None`` where the domain is ``Finite``; `source`: whether that
      comes from exact lower-level solutions or from a fit to the samples; `spread`: in several dimensions, the share of
      the policy that varies with each coordinate of the context, and its error.
    - `misfit`: how far the fitted policy is from the exact one, relative root mean square, where that can be had.
    - `conditions`: those of the convergence theorem for Chebyshev bases, as far as data can check them.
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

    def __repr__(self):
        held = {True: "yes", False: "no", None: "cannot tell"}
        lines = [
            f"Diagnosis of {self.basis!r}",
            f"  features    {self.functions} functions, {self.rank} told apart by {self.distinct} distinct contexts; "
            f"m = {self.m_Phi:.2g}, M = {self.M_Phi:.3g}",
            f"  samples     {self.per_function:.3g} for each function",
            f"  lower level curvature {self.mu:.2g} to {self.L:.2g}: steps of {self.inner_step:.2g} (stable below "
            f"{2 * self.inner_step:.2g}), {self.condition:.2g} of them to relax",
            f"  policy      {self.source if self.decay is None else f'{self.decay} ({self.source})'}",
        ]
        if self.misfit is not None:
            lines.append(f"  misfit      the fitted policy is {self.misfit:.2g} of its size off the exact one")
        lines += [f"  {name:<11} {held[state.holds]}: {state.words}" for name, state in self.conditions.items()]
        lines += [f"  advice      {line}" for line in self.advice] or ["  advice      nothing stands out."]
        return "\n".join(lines)

    def plot(self, path: str | Path | None = None) -> Any:
        """Coefficients by degree with the law they follow; written to `path` where one is given, else the figure."""
        if self.decay is None:
            raise ValueError("plot shows the decay of the policy, which finite contexts do not have.")
        import matplotlib

        if path is not None:
            matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        from matplotlib.ticker import MaxNLocator

        decay = self.decay
        figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
        degrees, tiny = np.arange(len(decay.coefficients)), 0.03 * decay.plateau
        last = min(len(degrees), max(decay.length * 5 // 4 + 6, min(self.functions, 64) + 4))
        shown = np.maximum(decay.coefficients[:last], tiny if tiny > 0 else 1e-300)
        axis.semilogy(degrees[:last], shown, "o", ms=4, color="#1b6ca8", label="coefficients of the policy")
        if decay.scale:
            k = np.arange(1, last)
            label = f"{decay.rho:.3g}$^{{-k}}$" if decay.kind == "geometric" else f"$k^{{-{decay.order:.2g}}}$"
            seen = decay.law(k) > tiny
            axis.semilogy(k[seen], decay.law(k)[seen], color="#d1495b", lw=1.3, label=f"the law they follow, {label}")
        if decay.resolved:
            axis.semilogy(
                degrees[:last], decay.errors[:last], color="#a0a0a0", lw=1, ls="--", label="noise or rounding"
            )
        words, right = "total degree", last
        if decay.dimension == 1:
            words, right = "degree", max(last, self.functions)
            axis.axvline(self.functions - 0.5, color="#3a7d44", lw=1, label=f"the basis, N = {self.functions}")
        axis.set(xlabel=words, ylabel="size", title=f"Coefficients by {words}", xlim=(-0.5, right))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if decay.kind == "algebraic":
            axis.set(xscale="log", xlim=(0.9, right))
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
        if path is None:
            return figure
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)
        return path
