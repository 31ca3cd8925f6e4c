"""One figure of policies and their errors.

Matplotlib is imported where it is used, since it takes seconds to load; no backend is chosen, so the user's stays.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..answer import COLOURS, DOTS, DPI, tidy
from ..problem import Samples

_LEAST_ERROR = 1e-12  # drawn on a logarithmic axis


def policy_figure(
    path: str | Path,
    contexts: np.ndarray,
    policies: Mapping[str, tuple[np.ndarray, np.ndarray]],
    samples: Samples,
    shown: str,
    labels: tuple[str, ...] = ("edge 1", "edge 2"),
    context_label: str = "demand",
    policy_label: str = "flow",
) -> Path:
    """One policy over the exact one, with the observations; and the error of every policy, by context.

    `policies` maps a name to the policy and the exact lower-level solution at its ``x``, each of shape
    ``(contexts, components)``; `shown` names the one drawn on the left.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    policy, exact = policies[shown]
    for k, label in enumerate(labels):
        colour = COLOURS[k]
        observed = np.asarray(samples.eta)[:DOTS, k]
        left.plot(np.asarray(samples.xi)[:DOTS], observed, ".", ms=3, color=colour, alpha=0.25, mew=0)
        left.plot(contexts, exact[:, k], color=colour, lw=3.5, alpha=0.35, label=f"{label}, exact")
        left.plot(contexts, policy[:, k], color=colour, lw=1.4, ls="--", label=f"{label}, policy")
    left.set(xlabel=context_label, ylabel=policy_label, title=f"Policy of {shown}, exact {policy_label}s, observations")
    left.legend(frameon=False)
    for k, (name, (policy, exact)) in enumerate(policies.items()):
        error = np.linalg.norm(policy - exact, axis=1)
        right.semilogy(contexts, np.maximum(error, _LEAST_ERROR), color=COLOURS[k % len(COLOURS)], lw=1.2, label=name)
    right.set(xlabel=context_label, ylabel=f"error of the {policy_label}s", title="Where each basis errs")
    right.legend(frameon=False, ncols=3, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    tidy(left, right)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DPI)
    return path
