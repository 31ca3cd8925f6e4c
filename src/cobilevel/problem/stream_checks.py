"""What a stream's function must do: return samples, as many as asked for, by its key alone."""

from collections.abc import Callable
from typing import Any

import equinox as eqx

from ..keys import as_key
from .draw_checks import check_draws
from .user_functions import failure

_ASKED = 3  # samples, to look at shapes


def check_draw(draw: Any, kind: type) -> None:
    """Raises where `draw` is no function that returns samples, of this kind, drawn by its key."""
    if not callable(draw):
        raise TypeError(f"Stream: draw must be a function draw(key, size) -> Samples, got {draw!r}.")
    named: Callable = draw
    try:
        drawn = eqx.filter_eval_shape(lambda key: named(key, _ASKED), as_key(0))
    except Exception as error:
        raise failure("Stream: draw(key, size)", error, f"fails for {_ASKED} samples") from error
    if not isinstance(drawn, kind):
        raise TypeError(f"Stream: draw(key, size) must return Samples, got {type(drawn).__name__}.")
    if len(drawn) != _ASKED:  # pyright: ignore[reportArgumentType]
        raise ValueError(f"Stream: draw(key, {_ASKED}) returned {len(drawn)} samples instead of {_ASKED}.")  # pyright: ignore
    if not any(check_draws("Stream: draw(key, size)", named, as_key(0))):
        raise ValueError(
            "Stream: draw(key, size) does not use its key, so every batch would be the same one: the function is "
            "traced once and compiled. Draw with jax.random and the key, not with NumPy's generators."
        )
