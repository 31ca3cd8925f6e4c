"""What the finished runs of an experiment say: quantities by method, and everything that its page shows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..sweep import Run
from .lab import Method
from .tuning import edges, searched


def rounded(values: Any, digits: int = 4) -> list[float]:
    """Numbers to so many significant digits, for a file that is read by people and browsers."""
    return [float(f"{value:.{digits}g}") for value in values]


class Findings(ABC):
    """The finished runs of a lab by method, each quantity as an array over instances."""

    title: ClassVar[str]
    unit: ClassVar[str]  # what the page calls an instance

    def __init__(self, lab: Any):
        self.lab, self.budget = lab, lab.budget
        self._runs: dict[Method, list[Run]] = {}
        for method, count in lab.plan():
            self._runs[method] = [lab.runs.get(lab.spec(method, seed)) for seed in range(count)]

    def runs(self, method: Method) -> list[Run]:
        return self._runs[method]

    def values(self, method: Method, name: str) -> np.ndarray:
        """One quantity, by instance."""
        return np.array([run.result[name] for run in self._runs[method]], dtype=float)

    def seconds(self, method: Method) -> float:
        """The mean time of a run."""
        return float(np.mean([run.cost["seconds"] for run in self._runs[method]]))

    @abstractmethod
    def lead(self) -> str:
        """What was done, in a few sentences."""

    @abstractmethod
    def data(self) -> list[str]:
        """On what data: a label and words."""

    @abstractmethod
    def constants(self) -> str:
        """With what settings of ``StocBiO``, in words."""

    @abstractmethod
    def panels(self) -> list[dict[str, Any]]:
        """The figures."""

    @abstractmethod
    def tables(self) -> list[dict[str, Any]]:
        """The tables."""

    @abstractmethod
    def policies(self) -> dict[str, Any]:
        """The policies of the first instance, for looking at."""

    @abstractmethod
    def verdicts(self) -> list[dict[str, Any]]:
        """A verdict on each claim that this experiment tests."""

    # -- the rest is the same for both

    def step_sizes(self, methods: Sequence[tuple[str, Method]], score: str) -> dict[str, Any]:
        """The table of the step sizes that were chosen, one row a named method; `score` says what was minimised."""
        rows = []
        for name, method in methods:
            tuned = self.lab.runs.get(self.lab.tuning_spec(method)).result
            rows.append([name, *edges(tuned), tuned["inner_steps"], f"{tuned['score']:.4g}"])
        return {
            "id": "steps",
            "title": f"Step sizes chosen on tuning {self.unit}s",
            "columns": ["method", "inner", "outer", "inner steps", f"{score} on tuning {self.unit}s"],
            "rows": rows,
            "note": searched(self.budget.grid),
        }

    def summary(self) -> dict[str, Any]:
        """What the page shows of this experiment."""
        budget = self.budget
        about = [
            [
                f"{self.unit}s",
                f"{budget.instances}, seeds 0 to {budget.instances - 1}; tuning {self.unit}s from seed 10000",
            ],
            self.data(),
            ["steps", f"{budget.steps} outer steps with 10 inner ones; otherwise as many oracle calls"],
            ["StocBiO", f"{self.constants()}, averages over the last tenth"],
            ["settings tried", f"{len(budget.grid.settings())} a method, by successive halving"],
        ]
        return {
            "experiment": self.lab.name,
            "title": self.title,
            "lead": self.lead(),
            "about": about,
            "panels": self.panels(),
            "tables": self.tables(),
            "policies": self.policies(),
        }
