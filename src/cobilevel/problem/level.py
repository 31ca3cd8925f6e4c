"""``Level``: the interface of a kind of data.

A kind of data says what contexts it holds, and gives a part of itself to look at (``look``, ``thinned``). Where its
batches come from is in ``reduction.batches``, its law at one context in ``lower.per_context``.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Shaped

from ..ground import cast
from .distributions import Distribution
from .input_checks import path_name

LOOK_ROWS = 8192  # joint samples looked at closely


class Level(eqx.Module):
    """What one level of the problem sees.

    - `crossed`: whether every context is paired with every row of the data.
    - `law`: the distribution of the contexts, if one was given.
    """

    crossed: ClassVar[bool] = False
    law: ClassVar[Any] = None

    @property
    def upper(self) -> "Level":
        """What the upper level sees."""
        return self

    @property
    def lower(self) -> "Level":
        """What the lower level sees."""
        return self

    @property
    def here(self) -> "Level":
        """The data held in this process: all of them, or a sample."""
        return self

    @property
    def share(self) -> float:
        """The share of all rows that is held in this process."""
        return 1.0

    @property
    @abstractmethod
    def count(self) -> int | None:
        """The number of rows of data; ``None`` for an endless stream."""

    @property
    def endless(self) -> bool:
        """Whether data are drawn without end."""
        return self.count is None

    @abstractmethod
    def contexts(self) -> Any:
        """The observed contexts as a weighted finite set; for a stream, some draws."""

    def distinct(self) -> int:
        """How many different contexts there are."""
        return self.contexts().distinct()

    def with_contexts(self, change: Callable[[Any], Any]) -> "Level":
        """The same data with their contexts, which are `given`, changed; a distribution stays as it is."""
        if self.law is not None:
            return self
        given: Any = self.given  # pyright: ignore[reportAttributeAccessIssue]
        return eqx.tree_at(lambda level: level.given, self, change(given), is_leaf=lambda node: node is given)

    def with_nodes(self, nodes: int) -> "Level":
        """The same data with so many nodes per dimension where contexts are integrated and no number is stated."""
        return self

    @abstractmethod
    def example(self, rows: int = 1) -> Any:
        """A few joint samples, to look at shapes and dtypes."""

    def look(self, key: Array, rows: int = LOOK_ROWS, contexts: int = 200) -> "Look":
        """A part small enough to examine closely: at most about `rows` joint samples, in random order.

        `contexts`: how many contexts to take where each is paired with all the data.
        """
        part = self.thinned(key, rows)
        return Look(part, part)

    @abstractmethod
    def thinned(self, key: Array, rows: int) -> "Level":
        """The same kind of data with at most `rows` rows, picked at random; for a stream, `rows` draws."""

    def finite(self, key: Array, rows: int = 10_000) -> "Level":
        """The data themselves if they are finite, else `rows` draws."""
        return self.thinned(key, rows) if self.endless else self

    def parsed(self, dtype: Any = None) -> "Level":
        """A copy for everything after the checks: floats in `dtype`, weights in one form."""

        def leaf(path: tuple, value: Any) -> Any:
            name = path_name("samples", path).replace(".given.values", ".xi").replace(".given", ".xi")
            return cast(value, dtype, name) if hasattr(value, "dtype") else value

        is_law = lambda node: isinstance(node, Distribution)  # which stays as it is
        return jax.tree_util.tree_map_with_path(leaf, self, is_leaf=is_law)

    def draw_contexts(self, key: Array, rows: int) -> Shaped[Array, "n ..."]:
        """Contexts as they are drawn, rather than as a quadrature rule."""
        return self.contexts().xi if self.law is None else self.law.sample(key, rows)

    def resample(self, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
        """How often each row of the pool occurs in a sample drawn again, with replacement, from these data."""
        raise TypeError("a Stream has no samples to resample; pass the samples it was solved on.")


class Look(eqx.Module):
    """Data few enough to examine closely: a level, and its joint samples, `together` of them at each context."""

    level: Any
    samples: Any
    together: int = eqx.field(static=True, default=1)
