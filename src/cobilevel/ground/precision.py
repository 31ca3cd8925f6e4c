"""The precision a call computes in: double where results should be exact, whatever JAX's setting."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from .checks import memory_limit
from .programs import one_thread, put

REMEDY = (
    'Subtract an offset or change the unit, ask for double precision (precision="double"), or switch JAX to it with '
    'jax.config.update("jax_enable_x64", True).'
)
_PRECISIONS = {"single": np.dtype(np.float32), "double": np.dtype(np.float64)}


@contextmanager
def double(on: bool = True) -> Iterator[None]:
    """Within it, this thread computes in double precision, or not, and promotes ranks; JAX's settings are unchanged."""
    with jax.enable_x64(on), ranks_promoted():
        yield


def ranks_promoted() -> AbstractContextManager:
    """Within it, arrays of different ranks combine as NumPy's do, whatever JAX's setting."""
    return jax.numpy_rank_promotion("allow")


def in_double() -> bool:
    """Whether JAX is switched to double precision here."""
    return jnp.result_type(float) == np.float64


def kept_digits(value: Any) -> Any:
    """`value` as an array with all its digits: a JAX array, or a NumPy one where JAX would cut them off."""
    if isinstance(value, Tracer | jax.Array):
        return jnp.asarray(value)
    with double():
        array = put(np.asarray(value))
    if in_double():
        return array
    return np.array(value, array.dtype) if array.dtype.itemsize == 8 and array.dtype.kind in "fiu" else array


def cast(array: Any, dtype: Any, name: str) -> jax.Array:
    """An array of the data as JAX has it here: floats in `dtype` if there is one; raises where numbers do not fit."""
    if jnp.issubdtype(array.dtype, jnp.floating):
        wanted = array.dtype if dtype is None else dtype
        if isinstance(array, Tracer) or (isinstance(array, jax.Array) and array.dtype == wanted):
            return jnp.asarray(array, wanted)
        given = np.asarray(array)
        with np.errstate(over="ignore"):
            found = given.astype(wanted)
        if found.dtype.itemsize < given.dtype.itemsize and not np.all(np.isfinite(found)):
            raise ValueError(
                f"{name} holds {'numbers up to ' * bool(given.ndim)}{np.max(np.abs(given)):.6g}, but the largest of "
                f"{found.dtype.name} is {np.finfo(found.dtype).max:.3g}. {REMEDY}"
            )
        return put(found)
    if isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.size and not in_double():
        least, most = int(array.min()), int(array.max())
        if least < -(2**31) or most >= 2**31:
            far = most if most >= 2**31 else least
            raise ValueError(
                f"{name} holds whole numbers up to {max(-least, most)}, which do not fit in 32 bits: {far} would "
                f"become {np.asarray(far).astype(np.int32)}. {REMEDY}"
            )
    return put(array)


@dataclass(frozen=True)
class Precision:
    """The precision a call computes in: `dtype`, or that of the data and the problem if ``None``.

    `returned` is the caller's precision, used for results; `words` say why if double was not possible.
    """

    dtype: Any
    returned: Any
    words: str = ""

    @staticmethod
    def of(data: PyTree, asked: str | None, exact: bool = True) -> "Precision":
        """For these data (and the problem); `exact` work is done in double unless asked otherwise."""
        if asked is not None and not (isinstance(asked, str) and asked in _PRECISIONS):
            raise ValueError(f'precision must be "single", "double" or None, got {asked!r}.')
        arrays = [leaf for leaf in jax.tree.leaves(data) if hasattr(leaf, "dtype") and hasattr(leaf, "nbytes")]
        floats = [leaf for leaf in arrays if jnp.issubdtype(leaf.dtype, jnp.floating)]
        single, most = _PRECISIONS["single"], _PRECISIONS["double"]
        own = np.result_type(single, *[leaf.dtype for leaf in floats]) if in_double() else single
        if asked is not None:
            return Precision(_PRECISIONS[asked], min(own, _PRECISIONS[asked]))
        size = sum(leaf.size * most.itemsize for leaf in floats)
        if exact and size + sum(leaf.nbytes for leaf in floats) <= memory_limit():
            return Precision(most, own)
        words = f"in double precision the data would take {size / 2**30:.1f} GiB." if exact else ""
        return Precision(None if in_double() else single, own, words)

    @contextmanager
    def context(self) -> Iterator[None]:
        """Within it, this precision is used, with factorisations on one thread and ranks promoted as in NumPy."""
        with one_thread(), ranks_promoted(), double() if self.dtype == np.float64 else nullcontext():
            yield

    def back(self, tree: PyTree) -> PyTree:
        """The results to return: floats in the caller's precision, if double was used."""
        if self.dtype != np.float64:
            return tree
        down = lambda a: a.astype(self.returned) if jnp.issubdtype(a.dtype, jnp.floating) else a
        return jax.tree.map(down, tree)
