"""The solver protocol: a solver is a frozen record of hyperparameters, and everything that evolves is its state."""

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from ..answer import Result
from ..derivatives import Ledger
from ..programs import put
from ..reduction import Bilevel, Reduced


class Clock(eqx.Module):
    """How far a run has come: steps taken, steps allowed, and the code of its ``Result``."""

    step: Int[Array, ""]
    limit: Int[Array, ""]
    result: Int[Array, ""]

    @staticmethod
    def start(limit: Int[Array, ""] | int, result: Int[Array, ""] | int = Result.RUNNING.code) -> "Clock":
        """Before the first of at most `limit` steps."""
        held = lambda number: number if isinstance(number, jax.Array) else put(np.asarray(number, np.int32))
        return Clock(*(held(number).astype(jnp.int32) for number in (0, limit, result)))

    @property
    def running(self) -> Bool[Array, ""]:
        """Whether nothing has ended the run so far; its steps may be used up all the same."""
        return self.result == Result.RUNNING.code

    def outcome(self, found: Int[Array, ""] | int, spent: Int[Array, ""] | int = Result.BUDGET.code) -> Array:
        """The code of the result so far: what ended the run before; else what was `found` now; else, with all steps
        used up, `spent`."""
        result = jnp.where(self.running, found, self.result)
        used_up = (result == Result.RUNNING.code) & (self.step >= self.limit)
        return jnp.where(used_up, spent, result).astype(jnp.int32)


class State(eqx.Module):
    """Everything that evolves: the iterates, the clock and the ledger of oracle calls; solvers add their own parts."""

    x: PyTree[Array]
    W: PyTree[Array]
    clock: Clock
    ledger: Ledger

    @property
    def step(self) -> Int[Array, "..."]:
        """Steps taken."""
        return self.clock.step

    @property
    def limit(self) -> Int[Array, "..."]:
        """Steps allowed."""
        return self.clock.limit

    @property
    def result(self) -> Int[Array, "..."]:
        """The code of the ``Result`` so far."""
        return self.clock.result

    @property
    def dtype(self) -> Any:
        """The precision of the coefficients."""
        return jax.tree.leaves(self.W)[0].dtype

    def record(self) -> dict[str, Array]:
        """Scalars to keep in the history."""
        return {}


class Solver(eqx.Module):
    """A frozen record of hyperparameters with ``init``, ``step`` and ``terminate``; ``run`` serves every solver."""

    default_steps: ClassVar[int] = 1000
    chunk: ClassVar[int] = 100  # steps between two looks from outside the compiled program
    may_end_at_once: ClassVar[bool] = True  # whether the start may be the solution, as far as it can see
    keeps_rows: ClassVar[bool] = False  # something for each row of the pool, which must be on one device then
    many_steps: ClassVar[bool] = True  # so many that it pays to compile them with all optimisations

    def prepare(self, reduced: Reduced) -> Reduced:
        """The form of the problem this solver works on; raises where it cannot."""
        return reduced

    def ready(self, reduced: Bilevel) -> Bilevel:
        """The same problem as its steps are to see it: what may be computed once for all of them."""
        return reduced

    @abstractmethod
    def init(self, reduced: Bilevel, key: Array, steps: Int[Array, ""] | int) -> State:
        """The state before the first of at most `steps` steps; all draws of the run are those of `key`."""

    @abstractmethod
    def step(self, reduced: Bilevel, state: Any) -> State:
        """One step; the loop advances ``state.step``."""

    def terminate(self, reduced: Bilevel, state: Any) -> Int[Array, ""]:
        """The code of the result after a step: ``Result.RUNNING`` to go on, and how it ended once steps are used up."""
        return state.clock.outcome(state.result)

    def finish(self, state: Any) -> tuple[PyTree, PyTree, dict[str, str]]:
        """``x`` and ``W`` to return, and in words what was chosen on the way."""
        return state.x, state.W, {}
