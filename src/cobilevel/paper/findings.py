"""What the finished runs of an experiment say: quantities by method, and everything that its page shows."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from ..sweep import Run
from .methods import HELD_OUT, Method, edges, searched


def rounded(values: Any, digits: int = 4) -> list[float]:
    """Numbers to so many significant digits, for a file that is read by people and browsers."""
    return [float(f"{value:.{digits}g}") for value in values]


class Findings:
    """The finished runs of a lab by method, each quantity as an array over instances.

    An experiment adds what its page shows, `summary`, and its `verdicts`.
    """

    title: ClassVar[str]
    unit: ClassVar[str]  # what the page calls an instance

    def __init__(self, lab: Any):
        self.lab, self.budget = lab, lab.budget
        self.methods = [method for method, _ in lab.plan()]
        self._runs: dict[tuple[Method, str], list[Run]] = {
            (method, tuned): [lab.runs.get(lab.spec(method, seed, tuned)) for seed in range(count)]
            for method, most in lab.plan()
            for tuned, count in lab.choices(method, most)
        }

    def runs(self, method: Method, tuned: str = HELD_OUT) -> list[Run]:
        """The runs of a method with step sizes chosen there; where there is no choice, its only ones."""
        return self._runs.get((method, tuned)) or self._runs[method, HELD_OUT]

    def values(self, method: Method, name: str, tuned: str = HELD_OUT) -> np.ndarray:
        """One quantity, by instance."""
        return np.array([run.result[name] for run in self.runs(method, tuned)], dtype=float)

    def seconds(self, method: Method) -> float:
        """The mean time of a run."""
        return float(np.mean([run.cost["seconds"] for run in self.runs(method)]))

    def step_sizes(self, methods: Sequence[tuple[str, Method]], score: str) -> dict[str, Any]:
        """The table of the step sizes that were chosen, one row a named method; `score` says what was minimised."""
        rows = []
        for name, method in methods:
            for tuned, _ in self.lab.choices(method, 1):
                chosen = asdict(self.lab.setting(method, tuned))
                ours = f"{np.mean(self.values(method, score, tuned)):.4g}"
                rows.append([name, tuned, *edges(chosen), chosen["inner_steps"], ours])
        return {
            "id": f"steps-{self.lab.name}",
            "title": f"{self.title}: step sizes chosen",
            "columns": ["method", "chosen on", "inner", "outer", "inner steps", f"{score} with them, mean"],
            "rows": rows,
            "note": f"{searched(self.budget.grid)} On held-out {self.unit}s; of those that came to the last round also "
            f"on the reported ones; and beyond the ends of the grid, where one was chosen.",
        }

    def page(self, lead: str, data: list[str], constants: str, **parts: Any) -> dict[str, Any]:
        """What the page shows: in words what was done, on what data (a label and words), with what settings of
        ``StocBiO``; and `parts`: panels, tables, policies."""
        budget = self.budget
        seeds = f"{budget.instances}, seeds 0 to {budget.instances - 1}; tuning {self.unit}s from seed 10000"
        about = [
            [f"{self.unit}s", seeds],
            data,
            ["steps", f"{budget.steps} outer steps with 10 inner ones; otherwise as many oracle calls"],
            ["StocBiO", constants],
            ["settings tried", f"{len(budget.grid.settings())} a method, by successive halving"],
        ]
        return {"experiment": self.lab.name, "title": self.title, "lead": lead, "about": about} | parts
