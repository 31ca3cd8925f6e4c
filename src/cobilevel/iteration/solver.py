"""The solver protocol: a solver is a frozen record of hyperparameters, and everything that evolves is its state."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int, PyTree

from ..derivatives import Ledger
from ..ground import Held, arithmetic
from ..reduction import Bilevel, Reduced
from .result import Result


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Clock:
    """How far a run has come: steps taken, steps allowed, and the code of its ``Result``."""

    step: Any
    limit: Any
    result: Any

    @staticmethod
    def start(limit: Any, result: Any = Result.RUNNING.code) -> "Clock":
        """Before the first of at most `limit` steps; in NumPy, unless traced."""
        xp = arithmetic(limit, result)
        return Clock(*(xp.asarray(number, np.int32) for number in (0, limit, result)))

    @property
    def running(self) -> Any:
        """Whether nothing has ended the run so far; its steps may be used up all the same."""
        return self.result == Result.RUNNING.code

    def outcome(self, now: Any, spent: Any = Result.BUDGET.code) -> Any:
        """The code of the result so far: what ended the run before; else what does `now`; else, with all steps used up,
        `spent`."""
        xp = arithmetic(self, now, spent)
        result = xp.where(self.running, now, self.result)
        used_up = (result == Result.RUNNING.code) & (self.step >= self.limit)
        return xp.where(used_up, spent, result).astype(np.int32)


class Evolving:
    """What every state has: the iterates ``x`` and ``W``, the clock, and the ledger of oracle calls."""

    x: Any
    W: Any
    clock: Clock
    ledger: Any

    @property
    def step(self) -> Int[Held, "..."]:
        """Steps taken."""
        return self.clock.step

    @property
    def limit(self) -> Int[Held, "..."]:
        """Steps allowed."""
        return self.clock.limit

    @property
    def result(self) -> Int[Held, "..."]:
        """The code of the ``Result`` so far."""
        return self.clock.result

    @property
    def dtype(self) -> Any:
        """The precision of the coefficients."""
        return jax.tree.leaves(self.W)[0].dtype

    def record(self) -> dict[str, Any]:
        """Scalars to keep in the history."""
        return {}


class State(Evolving, eqx.Module):
    """Everything that evolves inside of a compiled loop; solvers add their own parts."""

    x: PyTree[Held]
    W: PyTree[Held]
    clock: Clock
    ledger: Ledger


class Solver(eqx.Module):
    """A frozen record of hyperparameters with ``init``, ``step`` and ``terminate``; ``run`` runs every solver."""

    default_steps: ClassVar[int] = 1000
    chunk: ClassVar[int] = 100  # steps between two looks from outside the compiled program
    on_host: ClassVar[bool] = False  # whether its steps are plain Python, and not compiled

    def prepare(self, reduced: Reduced) -> Reduced:
        """The form of the problem this solver works on; raises if it cannot solve the problem."""
        return reduced

    def ready(self, reduced: Bilevel) -> Any:
        """The same problem as its steps see it, with everything computed that is the same for all steps."""
        return reduced

    @abstractmethod
    def init(self, reduced: Any, key: Array, steps: Any) -> Any:
        """The state before the first of at most `steps` steps; all draws of the run are those of `key`."""

    def like(self, reduced: Any, key: Array, steps: int) -> Any:
        """The structure and shapes of a state, used to read a saved one."""
        return self.init(reduced, key, steps)

    @abstractmethod
    def step(self, reduced: Any, state: Any) -> Any:
        """One step; the loop advances ``state.step``."""

    @abstractmethod
    def terminate(self, reduced: Any, state: Any) -> Any:
        """The code of the result after a step: ``Result.RUNNING`` to continue, or how it ended."""

    def lasting(self) -> "Solver":
        """The same, without what may be changed when a run is resumed."""
        return replace(self, tolerance=None) if hasattr(self, "tolerance") else self

    def outlook(self, state: Any, curves: Mapping[str, np.ndarray]) -> str:
        """In words, how far a run that has used up its steps has come, and how many more it would take."""
        return ""

    def finish(self, state: Any) -> tuple[PyTree, PyTree, dict[str, str]]:
        """``x`` and ``W`` to return, and what was chosen on the way, in words."""
        return state.x, state.W, {}
