"""The ledger: how often each kind of oracle was called, and on how many samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from ..ground import below, put
from ..reduction import Batch, Batches

_UNITS = ("calls", "samples")
_BOTH = Array | np.ndarray


class Count(eqx.Module):
    """Calls of one kind of oracle, and the samples they used, as 64-bit numbers in two halves."""

    calls: UInt32[_BOTH, " 2"]
    samples: UInt32[_BOTH, " 2"]


def added(a: UInt32[_BOTH, "... 2"], b: UInt32[_BOTH, "... 2"]) -> UInt32[_BOTH, "... 2"]:
    """``a + b``, with a carry from the low half to the high one."""
    with np.errstate(over="ignore"):  # the carry is what that is about
        low = a[..., 1] + b[..., 1]
        high = a[..., 0] + b[..., 0] + (low < a[..., 1]).astype(np.uint32)
    return _stacked(high, low)


def _product(a: UInt32[_BOTH, "..."], b: UInt32[_BOTH, "..."]) -> UInt32[_BOTH, "... 2"]:
    """``a * b`` in two halves."""
    with np.errstate(over="ignore"):
        return _stacked(below(a, b), a * b)


def _stacked(*parts: Any) -> UInt32[_BOTH, "... k"]:
    """In NumPy where numbers are known while a program is traced, else in JAX."""
    known = all(isinstance(part, np.ndarray | np.generic) for part in parts)
    return (np if known else jnp).stack(parts, axis=-1)


def _word(number: Any) -> UInt32[_BOTH, ""]:
    known = isinstance(number, int | np.ndarray | np.generic)
    return np.asarray(number, np.uint32) if known else jnp.asarray(number).astype(jnp.uint32)


class Ledger(eqx.Module):
    """What was spent: one count for each kind of oracle."""

    upper_value: Count
    upper_gradient: Count
    lower_value: Count
    lower_gradient: Count
    hessian_vector: Count
    cross_product: Count
    hessian: Count
    cross_matrix: Count

    @staticmethod
    def empty() -> "Ledger":
        return put(Ledger.page())

    @staticmethod
    def page() -> "Ledger":
        """An empty one for what one step spends. What is known of that while the step is traced stays a NumPy array,
        and costs nothing while it runs."""
        return Ledger(*(Count(np.zeros(2, np.uint32), np.zeros(2, np.uint32)) for _ in fields(Ledger)))

    def add(self, kind: str, batch: Batch, times: Any = 1) -> "Ledger":
        """One more call (or `times` more) of a kind, on a batch."""
        rows = len(batch) if batch.count is None else batch.count
        return self._enter(kind, _word(times), _product(_word(times), _word(rows)))

    def add_each(self, kind: str, draw: Callable[[Any], Batch], times: Any) -> "Ledger":
        """`times` more calls of a kind, each on the next batch of a draw, from number 0 on."""
        counts = getattr(draw, "counts", None)
        if counts is not None:
            taken = np.arange(len(counts), dtype=np.uint32) < _word(times)
            rows = jnp.sum(jnp.where(taken, counts, 0), dtype=jnp.uint32)
        elif isinstance(draw, Batches) and isinstance(draw(0).count, jax.Array):
            body = lambda number, total: total + jnp.asarray(draw(number).count, jnp.uint32)
            rows = jax.lax.fori_loop(0, times, body, jnp.uint32(0))
        else:
            return self.add(kind, draw(0), times)  # all of one size
        return self._enter(kind, _word(times), jnp.stack([jnp.uint32(0), rows]))

    def _enter(self, kind: str, calls: UInt32[_BOTH, ""], samples: UInt32[_BOTH, " 2"]) -> "Ledger":
        count, more = getattr(self, kind), _stacked(np.zeros((), np.uint32), calls)
        return replace(self, **{kind: Count(added(count.calls, more), added(count.samples, samples))})

    def plus(self, other: "Ledger", times: Any = 1, more_rows: UInt32[Array, "rows 2"] | None = None) -> "Ledger":
        """With all of another, so many times; and with a table of further amounts, a row for each entry."""
        leaves, structure = jax.tree.flatten(self)
        more, times = _stacked(*jax.tree.leaves(other)), _word(times)
        many = _product(more[1], times)
        many = added(many, _stacked(more[0] * times, np.zeros(len(leaves), np.uint32)))
        total = added(jnp.stack(leaves), many)
        total = total if more_rows is None else added(total, more_rows)
        return jax.tree.unflatten(structure, list(total))

    def totals(self) -> dict[str, dict[str, int]]:
        """Plain numbers: ``{kind: {"calls": ..., "samples": ...}}``, kinds never called left out."""
        number = lambda halves: int(halves[0]) << 32 | int(halves[1])
        pairs = (jax.tree.leaves(getattr(self, kind)) for kind in KINDS)
        return HostLedger([[number(np.asarray(halves)) for halves in pair] for pair in pairs]).totals()


KINDS = tuple(part.name for part in fields(Ledger))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class HostLedger:
    """The same for what runs on the host: `counts` has a row for each kind, calls and samples."""

    counts: Any

    @staticmethod
    def of(spent: Mapping[tuple[str, str], int]) -> "HostLedger":
        """From numbers by kind and unit."""
        return HostLedger(np.array([[spent.get((kind, unit), 0) for unit in _UNITS] for kind in KINDS], np.int64))

    def plus(self, other: "HostLedger") -> "HostLedger":
        """With all of another."""
        return HostLedger(np.asarray(self.counts) + other.counts)

    def totals(self) -> dict[str, dict[str, int]]:
        """Plain numbers by kind, those never called left out."""
        rows = zip(KINDS, np.asarray(self.counts).tolist(), strict=True)
        return {kind: dict(zip(_UNITS, row, strict=True)) for kind, row in rows if row[0]}

    def in_programs(self) -> Ledger:
        """The same for a compiled loop."""
        halves = lambda number: put(np.array(divmod(number, 2**32), np.uint32))
        return Ledger(*(Count(*map(halves, row)) for row in np.asarray(self.counts).tolist()))


def totals_of(spent: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    """Numbers by kind and unit, as ``{kind: {"calls": ..., "samples": ...}}``."""
    return HostLedger.of(spent).totals()
