"""``Certificate``: the figures by which a solution is judged, and how they read, in words and drawn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array, Float, PyTree

from ..answer import COLOURS, html_block, shown_figure, tidy
from ..derivatives import flattened
from ..ground import positive
from ..inference import MOST_NAMED
from ..lower import Feasibility
from .intervals import ROUNDED, Estimate


@dataclass(frozen=True)
class Constants:
    r"""The constants of the corrected theorem: Lipschitz constants of ``f`` (`f0`), of its gradient (`f1`), of the
    gradient (`g1`) and the Hessian (`g2`) of ``g``, and the strong convexity `mu` of ``g`` in ``y``.

    **Arguments:**

    - `f0`, `f1`, `g1`, `g2`, `mu`: as above, nonnegative numbers.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> constants = cb.Constants(f0=2.0, f1=1.0, g1=4.0, g2=1.0, mu=0.5)
    >>> certificate = cb.certify(case.problem, solution, case.test, constants=constants)
    >>> certificate.bound is not None
    True
    """

    f0: float | int
    f1: float | int
    g1: float | int
    g2: float | int
    mu: float | int

    def __post_init__(self):
        positive("Constants: mu", self.mu)
        for name in ("f0", "f1", "g1", "g2"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"Constants: {name} must be a nonnegative number, got {getattr(self, name)!r}.")

    @property
    def policy(self) -> float:
        """``K``: how much the gradient can change per unit of the policy's error."""
        f0, f1, g1, g2, mu = self.f0, self.f1, self.g1, self.g2, self.mu
        return f1 + g2 * f0 / mu + g2 * g1 * f0 / mu**2 + f1 * g1 / mu


@dataclass(frozen=True)
class Regret:
    """How much could be gained, in units of the objective, and by which step.

    - `total`: as the samples show it; `sampling`: the part due to sampling; `basis`: the part due to the basis
      (``None`` if it was not measured). `step`: the step to the minimum; `step_error`: its standard errors.
    """

    total: Estimate
    sampling: Estimate
    basis: Estimate | None
    step: Float[np.ndarray, " dx"]
    step_error: Float[np.ndarray, " dx"]

    def __float__(self) -> float:
        return float(self.total)

    @property
    def error(self) -> float:
        """The standard error of `total`."""
        return self.total.error

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of `total`."""
        return self.total.interval


@dataclass(frozen=True, eq=False)
class Certificate:
    """How good a solution is, measured on samples. Figures are numbers that carry ``.error`` and ``.interval``.

    - `gradient_norm`: the norm of the gradient of the contextual objective ``F`` at ``x``, without components blocked
      by active bounds.
    - `reduced_gradient_norm`: the same for the reduced objective on the same samples.
    - `policy_error`: ``E|policy - y*|^2``.
    - `adjoint_error`, `sensitivity_error`: squared distances of adjoint and sensitivity to the span of the basis, in
      the norm of ``d22 G``; the square root of their product bounds what they add to the gap.
    - `hypergradient_gap`: ``|grad F - grad F_Phi|``; `parts`: the vectors that add up to this difference.
    - `lower_loss`: the mean of ``g`` along the policy.
    - `objective`: ``F`` at ``x``; `regret`: how much lower it could be at a decision nearby, with the parts due to
      sampling and to the basis, and the step that leads there; ``None`` if the curvature is not known.
    - `typical`: the size of a single sample's gradient, to compare gradient norms with.
    - `mode`: "exact", "neighbours", "enriched" or "held-out"; `compared`: what the solution is compared with, in words.
    - `unresolved`: why the samples cannot show what the basis misses; empty if they can. If not, nothing is promised:
      all that rests on it is ``None`` or NaN, and `reduced_objective` is the objective along the policy of the reduced
      problem, without a correction.
    - `bound`: the corrected theorem's bound on the gradient norm, if constants were given.
    - `trouble`: what went wrong, empty if nothing did; `left_out`: what was not computed, and why.
    - `feasibility`: how far constraints on ``y`` are met on these samples. All other figures are then for the problem
      with the barrier it was solved with, whose price is stated.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> certificate = cb.certify(case.problem, solution, case.test)
    >>> certificate.mode
    'exact'
    >>> low, high = certificate.objective.interval
    >>> low < certificate.objective < high
    True
    """

    gradient_norm: Estimate
    reduced_gradient_norm: Estimate
    policy_error: Estimate | None
    adjoint_error: Estimate | None
    sensitivity_error: Estimate | None
    hypergradient_gap: Estimate | None
    lower_loss: Estimate
    gradient: PyTree[Array]
    parts: Mapping[str, PyTree[Array]]
    mode: str
    compared: str
    bound: float | None
    samples: int
    blocked: int
    trouble: str
    objective: Estimate | None = None
    reduced_objective: Estimate | None = None
    regret: Regret | None = None
    typical: float = float("nan")
    unresolved: str = ""
    names: tuple[str, ...] = ()
    feasibility: Feasibility | None = None
    left_out: str = ""

    def stationary(self, threshold: float) -> bool | None:
        """Whether the gradient of ``F`` is at most `threshold` at ``x``.

        True if the upper end of its interval is, False if the lower end is not, ``None`` if these samples cannot tell.
        """
        positive("stationary: threshold", threshold)
        if self.unresolved or not np.isfinite(self.gradient_norm.error):
            return None
        if self.gradient_norm.high <= threshold:
            return True
        return False if self.gradient_norm.low > threshold else None

    @property
    def blame(self) -> str:
        """How large each part of the gap is, in words."""
        if not self.parts:
            return "not measured"
        sizes = {name: float(np.linalg.norm(flattened(part))) for name, part in self.parts.items()}
        total, scale = sum(sizes.values()), float(np.linalg.norm(flattened(self.gradient)))
        if not np.isfinite(total):
            return "unknown"
        if total <= ROUNDED * (scale + np.nan_to_num(self.typical, nan=1.0)):
            return "rounding"
        return ", ".join(f"{name} {100 * size / total:.0f}%" for name, size in sizes.items())

    @property
    def title(self) -> str:
        """The mode, the samples, and what the solution is compared with."""
        return f"Certificate({self.mode} mode, {self.samples} samples: compared with {self.compared})"

    def rows(self) -> list[tuple[str, str]]:
        """Names and values of the figures, in words."""
        scale = "" if np.isnan(self.typical) else f"  (of a single sample: {self.typical:.2g})"
        blocked = f"  ({self.blocked} coordinates blocked by bounds are left out)" if self.blocked else ""
        own = "not known" if self.unresolved else repr(self.gradient_norm)
        gap = "0" if self.blame == "rounding" else repr(self.hypergradient_gap)
        gap += f"  from {self.blame}" if self.blame == "rounding" or self.hypergradient_gap != 0 else ""
        return self._stake() + [
            (name, words)
            for name, figure, words in (
                ("gradient of F", self.gradient_norm, f"{own}{scale}{blocked}"),
                ("gradient of F_Phi", self.reduced_gradient_norm, repr(self.reduced_gradient_norm)),
                ("their difference", self.hypergradient_gap, gap),
                ("policy error, squared", self.policy_error, repr(self.policy_error)),
                ("adjoint error, squared", self.adjoint_error, repr(self.adjoint_error)),
                ("sensitivity error, squared", self.sensitivity_error, repr(self.sensitivity_error)),
                ("lower objective", self.lower_loss, repr(self.lower_loss)),
                ("bound by the constants", self.bound, "" if self.bound is None else f"{self.bound:.3g}"),
            )
            if figure is not None
        ]

    def _stake(self) -> list[tuple[str, str]]:
        """What is at stake, in units of the objective and of ``x``."""
        rows = [] if self.objective is None else [("objective F", self.objective.words(4))]
        if self.reduced_objective is not None:
            rows = [
                ("objective F", "not known"),
                ("objective F_Phi", f"{self.reduced_objective.words(4)}, not corrected"),
            ]
        if self.regret is None:
            return rows
        total, basis, size = self.regret.total, self.regret.basis, abs(float(self.objective or 0))
        rows.append(("regret", f"{total!r}" + (f", at most {100 * total.high / size:.2g}% of F" if size else "")))
        rows.append(("  from sampling", repr(self.regret.sampling.beyond_rounding(size))))
        rows += [] if basis is None else [("  from the basis", repr(basis.beyond_rounding(size)))]
        steps = zip(self.names, self.regret.step, self.regret.step_error, strict=True)
        shown = [f"{name} {move:+.2g} +- {error:.2g}" for name, move, error in steps]
        more = [f"... and {len(shown) - MOST_NAMED} more"] if len(shown) > MOST_NAMED else []
        return [*rows, ("step to the minimum", ", ".join(shown[:MOST_NAMED] + more))]

    def _remarks(self) -> tuple[list[str], list[str], list[str]]:
        """What is not known, how far constraints on ``y`` are met, and what went wrong: in words."""
        unknown = f"unresolved: {self.unresolved}. What the basis misses is unknown, so nothing is promised."
        met = [] if self.feasibility is None else self.feasibility.words()
        said = [f"left out: {self.left_out}"] if self.left_out else []
        said += [f"trouble: {self.trouble}"] if self.trouble else []
        return [unknown] if self.unresolved else [], met, said

    def __repr__(self):
        unknown, met, trouble = self._remarks()
        rows = [f"{name:<24} {words}" for name, words in self.rows()]
        return "\n  ".join([self.title, *unknown, *rows, *met, *trouble])

    def plot(self) -> Any:
        """Draws the figures with their 95% intervals and returns the Matplotlib figure."""
        regret, parts = self.regret, {}
        if regret is not None:
            parts = {"regret": regret.total, "from sampling": regret.sampling, "from the basis": regret.basis}
        slopes = {"gradient of F": self.gradient_norm, "gradient of F_Phi": self.reduced_gradient_norm}
        slopes |= {"their difference": self.hypergradient_gap}
        errors = {"policy": self.policy_error, "adjoint": self.adjoint_error, "sensitivity": self.sensitivity_error}
        groups = {"regret, in units of the objective": parts, "norms of gradients": slopes, "squared errors": errors}
        objective = "" if self.objective is None else f", F = {self.objective.words(4)}"
        title = f"Certificate, {self.mode} mode, {self.samples} samples{objective}"
        return plot_estimates(title + ("; unresolved: nothing is promised" if self.unresolved else ""), groups)

    def _repr_html_(self) -> str:
        unknown, met, trouble = self._remarks()
        return html_block(self.title, self.rows(), [*met, *unknown, *trouble])


def plot_estimates(title: str, groups: Mapping[str, Mapping[str, Estimate | None]]) -> Any:
    """Intervals with the estimate as a point; one panel for each group, since groups have different units."""
    known = {name: {row: value for row, value in rows.items() if value is not None} for name, rows in groups.items()}
    known = {name: rows for name, rows in known.items() if rows}
    sizes = [len(rows) for rows in known.values()]
    figure = shown_figure(7.6, 1.1 + 0.42 * sum(sizes) + 0.62 * len(sizes))
    panels = figure.subplots(len(known), 1, squeeze=False, height_ratios=[size + 0.6 for size in sizes])[:, 0]
    for axis, colour, (name, rows) in zip(panels, COLOURS, known.items(), strict=False):
        _draw_estimates(axis, rows, colour)
        axis.set_title(name, loc="left", fontsize="medium")
        tidy(axis)
    figure.suptitle(title, fontsize="medium")
    return figure


def _draw_estimates(axis: Any, rows: dict[str, Estimate], colour: str) -> None:
    ends = [end for value in rows.values() for end in (float(value), value.low, value.high) if np.isfinite(end)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    reach = high - low or 1.0
    for place, value in enumerate(rows.values()):
        if not np.isfinite(float(value)):
            words = "cannot be measured on these samples"
            axis.text(0, place, words, va="center", fontsize="small", color="#5c5c5c")
            continue
        left, right = max(value.low, low), min(value.high, high + reach / 10)  # one without an end reaches beyond all
        axis.plot([left, right], [place, place], color=colour, lw=5, alpha=0.35, solid_capstyle="butt")
        axis.plot([float(value)], [place], "o", ms=6, color=colour)
        axis.annotate(value.words(), (right, place), (6, 0), textcoords="offset points", va="center", fontsize="small")
    axis.axvline(0, color="#a0a0a0", lw=0.8, zorder=0)
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set(ylim=(len(rows) - 0.5, -0.5), xlim=(low - 0.03 * reach, low + 1.45 * reach))
