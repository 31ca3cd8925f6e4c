"""Checks of single arguments that many modules share; each error names the argument and what it must be."""

from typing import Any

import numpy as np

_MOST_BYTES = 8 * 2**30


_LARGEST = 2**31 - 1  # steps and sizes are counted in 32 bits


def whole(name: str, value: Any, least: int = 1, what: str = "") -> int:
    """`value` as a Python integer of at least `least`; raises otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= _LARGEST:
        limit = "" if not isinstance(value, int | np.integer) or value <= _LARGEST else " and at most 2147483647"
        meaning = f": {what}" if what else ""
        raise ValueError(f"{name} must be a whole number of at least {least}{limit}, got {value!r}{meaning}.")
    return int(value)


def positive(name: str, value: Any) -> float:
    """`value` as a positive, finite float; raises otherwise."""
    try:
        number = float("a bool" if isinstance(value, bool | np.bool_) else value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a positive number, got {value!r}.") from error
    if not 0 < number < np.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}.")
    return number


def fits(name: str, what: str, size: int, instead: str) -> None:
    """Raises where something a solver must keep would take more memory than is sensible."""
    if size > _MOST_BYTES:
        raise ValueError(
            f"{name}: {what} would take {size / 2**30:.1f} GiB, more than {_MOST_BYTES / 2**30:.0f}. Use a smaller "
            f"basis or fewer samples, or a solver without them: {instead}."
        )
