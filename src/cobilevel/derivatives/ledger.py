"""The ledger: how often each kind of oracle was called, and on how many samples."""

from dataclasses import fields, replace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt32

from ..programs import put
from ..reduction import Batch


class Count(eqx.Module):
    """Calls of one kind of oracle, and the samples they used, as 64-bit numbers in two halves."""

    calls: UInt32[Array, " 2"]
    samples: UInt32[Array, " 2"]


def _zero() -> Count:
    return Count(*put((np.zeros(2, np.uint32), np.zeros(2, np.uint32))))


def _carry_add(halves: UInt32[Array, " 2"], amount: UInt32[Array, ""]) -> UInt32[Array, " 2"]:
    high, low = halves
    total = low + amount
    return jnp.stack([high + (total < low).astype(jnp.uint32), total])


def _product(a: UInt32[Array, ""], b: UInt32[Array, ""]) -> UInt32[Array, " 2"]:
    """``a * b`` in two halves, by 16-bit parts."""
    low = jnp.uint32(0xFFFF)
    first = (a & low) * (b & low)
    middle = (a & low) * (b >> 16) + (first >> 16)
    carry = (a >> 16) * (b & low) + (middle & low)
    return jnp.stack([(a >> 16) * (b >> 16) + (middle >> 16) + (carry >> 16), (carry << 16) | (first & low)])


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
        return Ledger(*(_zero() for _ in fields(Ledger)))

    def add(self, kind: str, batch: Batch, times: Any = 1) -> "Ledger":
        """One more call (or `times` more) of a kind, on a batch."""
        count, times = getattr(self, kind), jnp.asarray(times, jnp.uint32)
        rows = jnp.asarray(len(batch) if batch.count is None else batch.count, jnp.uint32)
        high, low = _product(times, rows)
        samples = _carry_add(count.samples, low).at[0].add(high)
        grown = Count(_carry_add(count.calls, times), samples)
        return replace(self, **{kind: grown})

    def totals(self) -> dict[str, dict[str, int]]:
        """Plain numbers: ``{kind: {"calls": ..., "samples": ...}}``, kinds never called left out."""

        def number(halves):
            high, low = np.asarray(halves).tolist()
            return (high << 32) + low

        table = {}
        for part in fields(self):
            count = getattr(self, part.name)
            if number(count.calls):
                table[part.name] = {"calls": number(count.calls), "samples": number(count.samples)}
        return table
