"""What every gallery problem returns."""

from dataclasses import dataclass
from typing import Any

from ..problem import Problem


@dataclass(frozen=True)
class Instance:
    """A ready problem: what to solve, data to solve it from, data to judge it by, and what is known of the truth."""

    problem: Problem
    train: Any
    test: Any
    truth: Any
