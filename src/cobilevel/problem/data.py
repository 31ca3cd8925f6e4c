"""The kinds of data a user can pass, each checked when it is made."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from ..functions import Sampler
from ..ground import Held, arithmetic, as_key, generator, kept_digits, put, rows_at, split_key, whole
from .distributions import Distribution, require_nodes
from .door import Contexts, read_columns
from .frames import frame_columns
from .input_checks import array_of, check_stream, concrete, data_leaf, each_leaf, require_contexts, require_rows
from .level import LOOK_ROWS, Level, Look
from .partitions import PartitionedSamples, Roles, is_partitioned

SAMPLE_ROWS = 100_000  # rows of a table in partitions that are held in this process
CONTEXTS_EACH, SAMPLES_EACH = 2, 8  # asked for each function: distinct contexts; samples, where they are noisy


def _of_mean_one(weights: Any) -> Any:
    """Weights scaled to mean one, in a floating dtype; first by a power of two, which does not round, so that their sum
    neither overflows nor vanishes."""
    xp, dtype = arithmetic(weights), weights.dtype if jnp.issubdtype(weights.dtype, jnp.floating) else float
    wide = xp.asarray(weights).astype(float)
    wide = xp.ldexp(wide, -xp.frexp(wide.max())[1])
    return (wide / wide.mean()).astype(dtype)


class Samples(Level):
    """Joint samples of context and noise, one per row.

    **Arguments:**

    - `xi`: contexts, shape ``(n,)`` for an ``Interval``, ``(n, d)`` for a ``Box``; strings, or a dict of columns.
    - `eta`: noise, any pytree of arrays with leading axis ``n`` (or ``None``).
    - `weights`: optional nonnegative weights, shape ``(n,)``; only their ratios matter.

    **Raises:** ``ValueError`` if lengths differ or numbers are not finite; the message names the first bad row.

    **Example:**

    >>> weather, demand = np.array([0.1, 0.5, 0.9]), np.array([5.0, 6.0, 3.0])
    >>> cb.Samples(weather, demand).count
    3
    >>> cb.Samples({"weather": weather, "day": ["mon", "mon", "tue"]}, {"demand": demand}).count
    3
    """

    given: Any  # contexts as they were handed over, or `Contexts` once the domain is known
    eta: PyTree[Shaped[Held, "n ..."]]
    weights: Float[Held, " n"] | None

    def __init__(self, xi: Any, eta: Any = None, weights: Any = None):
        self.given = xi if isinstance(xi, Contexts) else read_columns(xi, "Samples: xi")
        self.eta = each_leaf(data_leaf, eta, "Samples: eta")
        self.weights = None if weights is None else array_of(weights, "Samples: weights")

    def __check_init__(self):
        rows = require_contexts(self.xi, "Samples: xi")
        if jax.tree.leaves(self.eta):
            require_rows(self.eta, "Samples: eta", rows)
        if self.weights is None:
            return
        if self.weights.shape != (rows,):
            raise ValueError(f"Samples: weights must have shape ({rows},), got {self.weights.shape}.")
        require_rows(self.weights, "Samples: weights", rows)
        if concrete(self.weights) and (np.any(self.weights < 0) or not np.any(self.weights > 0)):
            raise ValueError("Samples: weights must be nonnegative and not all zero.")

    @property
    def xi(self) -> Any:
        """The contexts: an array, strings, or a dict of columns."""
        return self.given.values if isinstance(self.given, Contexts) else self.given

    @classmethod
    def from_frame(
        cls, frame: Any, context: Any, eta: Any = None, weights: Any = None, sample: int = SAMPLE_ROWS
    ) -> Any:
        """Joint samples from a pandas or polars data frame (or one that narwhals supports), one per row.

        A dask data frame, or a list of partitions (data frames, delayed ones, paths of Parquet files, functions that
        return a frame), is not loaded: its rows stay on the workers of the active dask client, or in files that are
        read one after the other. ``solve`` accepts the result like any samples.

        **Arguments:**

        - `context`: the name of a column, for an ``Interval`` or a ``Finite`` domain; or a list of names, for a
          ``Mixed`` domain (or a ``Box``, in this order). Text, categories and booleans belong to ``Finite``.
        - `eta`: the name of a column, or a list of names: ``f`` and ``g`` then index it by name, ``eta["demand"]``.
        - `weights`: the name of a column, optional.
        - `sample`: for a table in partitions, how many rows to hold in this process, drawn at random. The basis,
          standard errors and certificates are computed from them.

        Integers become floats in contexts and stay integers in `eta`; booleans become 0 and 1. Missing values, text
        in `eta`, and dates raise an error that says what to do.
        """
        if is_partitioned(frame):
            return PartitionedSamples.of(frame, Roles(cls, context, eta, weights), sample)
        return cls(*frame_columns(frame, context, eta, weights, f"{cls.__name__}.from_frame"))

    def __len__(self) -> int:
        return len(next(iter(self.xi.values())) if isinstance(self.xi, Mapping) else self.xi)

    @property
    def count(self):
        return len(self)

    def rows(self, index: Any) -> "Samples":
        """The samples at the given positions."""
        return jax.tree.map(lambda a: kept_digits(a[index]) if isinstance(a, np.ndarray) else rows_at(a, index), self)

    def mean_one_weights(self) -> Float[Array, " n"]:
        """The weights scaled to mean 1, so that ``mean(w * f)`` estimates the expectation, on any batch."""
        if self.weights is None:
            return put(np.ones(len(self), self.xi.dtype if jnp.issubdtype(self.xi.dtype, jnp.floating) else float))
        return jax.block_until_ready(put(_of_mean_one(self.weights)))

    def shares(self) -> Float[np.ndarray, " n"]:
        """The weights scaled to sum to 1, in double precision."""
        if self.weights is None:
            return np.full(len(self), 1 / len(self))
        return np.asarray(self.mean_one_weights(), dtype=float) / len(self)

    def distinct(self) -> int:
        """How many different contexts there are."""
        return len(np.unique(np.asarray(self.xi), axis=0))

    def supported(self, noisy: bool, finite: bool = False) -> int:
        """How many functions of the context these samples support: never fewer than one.

        Each function takes two distinct contexts, or one if it is linear, since linear functions do not swing between
        contexts. Where noise must be averaged out, each also takes eight samples (weighted samples count for less: the
        squared sum of their weights over the sum of squares). If contexts are `finite` in number there is nothing
        between them, and each may have a function.
        """
        effective = round(1 / float(np.sum(self.shares() ** 2)))
        distinct, linear = self.distinct(), 1 + int(np.prod(self.xi.shape[1:]))
        by_contexts = distinct if finite else max(min(distinct, linear), distinct // CONTEXTS_EACH)
        return max(1, min(by_contexts, effective // SAMPLES_EACH if noisy else distinct))

    def contexts(self):
        return Samples(self.given, None, self.weights)

    def example(self, rows=1):
        return self.rows(np.arange(rows) % len(self))

    def thinned(self, key, rows):
        return self.rows(generator(key).permutation(len(self))[:rows])

    def parsed(self, dtype=None):
        """The samples without rows of weight zero, which must not be counted, and with weights of mean one."""
        if self.weights is None:
            return super().parsed(dtype)
        scaled = eqx.tree_at(lambda s: s.weights, self, _of_mean_one(self.weights))
        whole: Any = Level.parsed(scaled, dtype)
        kept = whole.rows(np.flatnonzero(np.asarray(whole.weights) > 0))
        return eqx.tree_at(lambda s: s.weights, kept, kept.mean_one_weights())

    def resample(self, rng):
        return _drawn_again(len(self), rng)


def _drawn_again(count: int, rng: np.random.Generator) -> Float[np.ndarray, " n"]:
    return rng.multinomial(count, np.full(count, 1 / count)).astype(float)


class Product(Level):
    """Contexts independent of the data: every context is paired with every row of ``eta``, as in hyper-cleaning.

    **Arguments:**

    - `contexts`: as for ``Samples``, or a distribution on the domain. Methods that need a finite pool then use its
      Gauss quadrature with ``nodes`` nodes per dimension; stochastic methods draw fresh contexts.
    - `eta`: the data, any pytree of arrays with a common leading axis.
    - `nodes`: the number of quadrature nodes per dimension; by default 64, or where ``y`` or ``x`` is large as many as
      the basis needs.

    **Example:**

    >>> contexts = cb.Uniform(cb.Interval(0.0, 1.0))
    >>> data = cb.Product(contexts, {"image": np.zeros((20, 4)), "label": np.arange(20)}, nodes=8)
    >>> data.count
    20
    """

    crossed: ClassVar[bool] = True
    given: Any
    eta: PyTree[Shaped[Held, "n ..."]]
    nodes: int | None = eqx.field(static=True)

    def __init__(self, contexts: Any, eta: PyTree, nodes: int | None = None):
        ready = isinstance(contexts, Distribution | Contexts)
        self.given = contexts if ready else read_columns(contexts, "Product: contexts")
        self.eta, self.nodes = each_leaf(data_leaf, eta, "Product: eta"), nodes

    def __check_init__(self):
        require_rows(self.eta, "Product: eta", None)
        if self.nodes is not None:
            whole("Product: nodes", self.nodes)
        if self.law is None:
            require_contexts(self.contexts().xi, "Product: contexts")
        else:
            require_nodes(self.law, self.nodes or 64, "Product: nodes")

    @property
    def count(self):
        return len(jax.tree.leaves(self.eta)[0])

    @property
    def law(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.given if isinstance(self.given, Distribution) else None

    def contexts(self):
        if self.law is None:
            return Samples(self.given)
        points, weights = self.law.quadrature(self.nodes or 64)
        return Samples(Contexts(points), None, weights)

    def with_nodes(self, nodes):
        return self if self.law is None or self.nodes is not None else Product(self.given, self.eta, nodes)

    def pairs(self, context: Samples, i: Any, j: Any) -> Samples:
        """The pairs of context ``i`` and data row ``j``."""
        xp = arithmetic(context, self.eta, i, j)
        at = lambda tree, index: put(jax.tree.map(lambda a: xp.asarray(a)[index], tree))
        return Samples(at(context.given, i), at(self.eta, j), at(context.weights, i))

    def example(self, rows=1):
        context, index = self.contexts(), np.arange(rows)
        return self.pairs(Samples(context.given), index % len(context), index % self.count)

    def look(self, key, rows=LOOK_ROWS, contexts=200):
        """Each context with the same rows of the data, so that the rows add no noise between contexts."""
        for_context, for_data = split_key(key)
        context = self.contexts() if self.law is None else Samples(Contexts(self.law.sample(for_context, contexts)))
        chosen = generator(for_context).permutation(len(context))[:contexts]
        level = self.thinned(for_data, max(1, rows // len(chosen)))
        each = np.arange(level.count)
        return Look(level, level.pairs(context, np.repeat(chosen, len(each)), np.tile(each, len(chosen))), len(each))

    def thinned(self, key, rows):
        order = generator(key).permutation(self.count)[:rows]
        return Product(self.given, put(jax.tree.map(lambda a: np.asarray(a)[order], self.eta)), self.nodes)

    def resample(self, rng):
        """The rows of the data are drawn again, and so are the contexts if they are a sample, not a distribution."""
        contexts = len(self.contexts())
        often = _drawn_again(contexts, rng) if self.law is None else np.ones(contexts)
        return np.outer(often, _drawn_again(self.count, rng)).ravel()


class Stream(Level):
    """Endless data: ``draw(key, size)`` returns fresh ``Samples``; it must be traceable by JAX.

    **Arguments:**

    - `draw`: the function ``draw(key, size)``.

    **Example:**

    >>> def draw(key, size):
    ...     xi = jax.random.uniform(key, (size,))
    ...     return cb.Samples(xi, jnp.sin(xi))
    ...
    >>> cb.Stream(draw).draw(jax.random.key(0), 8).count
    8
    """

    draw: Callable[[Array, int], Samples]

    def __check_init__(self):
        check_stream(self.draw, Samples)

    def parsed(self, dtype=None):
        return self._changed(lambda drawn: Level.parsed(drawn, dtype))

    @property
    def count(self):
        return None

    def contexts(self):
        return self.example(LOOK_ROWS // 2).contexts()

    def with_contexts(self, change):
        return self._changed(lambda drawn: drawn.with_contexts(change))

    def _changed(self, change: Callable[[Samples], Any]) -> "Stream":
        """The stream as its function is now, with a change of what it draws."""
        finish = lambda drawn: change(drawn) if isinstance(drawn, Samples) else drawn
        now = Sampler(self.draw, as_key(0), finish=finish)
        return eqx.tree_at(lambda s: s.draw, self, now, is_leaf=lambda v: v is self.draw)

    def example(self, rows=1):
        return self.draw(as_key(0), rows)

    def thinned(self, key, rows):
        return self.draw(key, rows)


def no_pool(user: str) -> ValueError:
    """The error raised when a stream is passed to something that needs a finite pool."""
    return ValueError(
        f"{user} needs a finite pool, but samples is a Stream. Use a solver that draws batches, such as SOBA, or "
        "draw a sample yourself: samples = stream.draw(jax.random.key(0), 10_000)."
    )


class Levels(eqx.Module):
    """Different data for the two levels: the upper objective gets the upper ``eta``, the lower objective the lower.

    **Arguments:**

    - `upper`, `lower`: ``Samples``, ``Product`` or ``Stream``.

    **Example:**

    >>> seen = cb.Samples(np.linspace(0, 1, 30), np.ones(30))
    >>> held_out = cb.Samples(np.linspace(0, 1, 10), np.ones(10))
    >>> cb.Levels(upper=held_out, lower=seen).lower.count
    30
    """

    upper: Level
    lower: Level

    def __check_init__(self):
        for name in ("upper", "lower"):
            if not isinstance(getattr(self, name), Level):
                raise TypeError(
                    f"Levels: {name} must be Samples, Product or Stream, got {type(getattr(self, name)).__name__}."
                )


Data = Level | Levels
