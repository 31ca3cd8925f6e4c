"""Checks of functions that draw, a stream's and a conditional sampler's: what they draw must come from their key.

Such a function is traced once and compiled. Numbers that come from elsewhere, NumPy's generators say, are then the same
in every batch. Two traces show them where they differ; else it shows that an output does not depend on the key.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jaxtyping import PyTree

from ..functions import anew, depends_on, failure, key_of
from ..keys import as_key, split_key
from ..programs import program
from .array_checks import path_name
from .domain import slack

CHECK_ROWS = 64  # of a check by chance: as many draws are not in order, or alike, unless they are so made
CONTEXTS_DRAWN_AT = 8  # of a check, and the rows of a second period: as many do not agree by chance
_INSTEAD = (
    "The function is traced once and compiled, so every batch would hold the same values. Draw with jax.random and the "
    "key, not with NumPy's or Python's generators"
)


def _traced_draw(draw: Callable, *example: Any) -> tuple[ClosedJaxpr, Any]:
    """A function that draws, traced afresh, and the shapes of what it returns."""
    with anew():
        return jax.make_jaxpr(lambda *args: draw(*args, CHECK_ROWS), return_shape=True)(*example)


def _in_order(values: np.ndarray) -> bool:
    """Whether rows are all the same, in order, or repeat, as zeros, grids and ``arange(size) % 7`` do; numbers drawn at
    random do not. Column by column."""
    table = values.reshape(len(values), -1).astype(float)
    steps = np.diff(table, axis=0)
    fine = np.all(steps >= 0, axis=0) | np.all(steps <= 0, axis=0)
    for period in range(2, len(table) - CONTEXTS_DRAWN_AT + 1):
        fine |= np.all(table[period:] == table[:-period], axis=0)
    return bool(np.all(fine))


def _from_key(name: str, draw: Callable, traced: ClosedJaxpr, shapes: Any, *example: Any) -> list[bool]:
    """Raises where what ``draw(key, ..., size)`` draws does not come from its key; says of each leaf whether it does.

    Leaves that do not are let pass where all rows are the same, in order, or repeat.
    """
    again, _ = _traced_draw(draw, *example)
    values = lambda closed: key_of(list(jax.jit(jaxpr_as_fun(closed))(*example)))
    if key_of(traced) != key_of(again) and values(traced) != values(again):
        raise ValueError(
            f"{name} gives other values each time it is called with the same key: it draws from outside. {_INSTEAD}."
        )
    from_key = depends_on(traced.jaxpr, slice(0, 1))
    names = [path_name("", path) for path, _ in jax.tree_util.tree_leaves_with_path(shapes)]
    for place, (leaf, yes) in enumerate(zip(names, from_key, strict=True)):
        if yes:
            continue
        value = jax.jit(lambda *args, place=place: jaxpr_as_fun(traced)(*args)[place])(*example)
        if not _in_order(np.asarray(value)):
            what = leaf.lstrip(".") or "what it returns"
            raise ValueError(
                f"{name} does not use its key for {what}. {_INSTEAD}; to have the same values in each batch, in random "
                "order, use jax.random.permutation(key, values)."
            )
    return from_key


def check_stream(draw: Any, kind: type) -> None:
    """Raises where `draw` is no function that returns samples, of this kind, drawn by its key."""
    if not callable(draw):
        raise TypeError(f"Stream: draw must be a function draw(key, size) -> Samples, got {draw!r}.")
    try:
        traced, drawn = _traced_draw(draw, as_key(0))
    except Exception as error:
        raise failure("Stream: draw(key, size)", error, f"fails for {CHECK_ROWS} samples") from error
    if not isinstance(drawn, kind):
        raise TypeError(f"Stream: draw(key, size) must return Samples, got {type(drawn).__name__}.")
    if len(drawn) != CHECK_ROWS:
        raise ValueError(f"Stream: draw(key, {CHECK_ROWS}) returned {len(drawn)} samples instead of {CHECK_ROWS}.")
    if not any(_from_key("Stream: draw(key, size)", draw, traced, drawn, as_key(0))):
        raise ValueError(
            "Stream: draw(key, size) does not use its key, so every batch would be the same one: the function is "
            "traced once and compiled. Draw with jax.random and the key, not with NumPy's generators."
        )


def check_conditional(draw: Callable, xi: Any, eta: PyTree) -> None:
    """Raises where ``conditional(key, xi, size)`` fails, gives something else than noise like `eta`, or does not come
    from its key; `xi` and `eta` are a few samples of the lower level."""
    name, key = "conditional(key, xi, size)", as_key(0)
    some = np.asarray(xi)
    try:
        traced, drawn = _traced_draw(draw, key, some[0])
    except Exception as error:
        reason = failure(name, error, f"fails for a key, xi = {some[0]} and size = {CHECK_ROWS}")
        raise ValueError(
            f"{reason} It is to return `size` draws of eta given one context; leave it out of the problem if there is "
            "no such function."
        ) from error
    _check_like(name, drawn, eta)
    from_key = _from_key(name, draw, traced, drawn, key, some[0])
    values = jax.tree.map(np.asarray, _drawn_at_contexts(draw, jnp.stack(split_key(key, len(some))), some))
    leaves = zip(jax.tree_util.tree_leaves_with_path(values), jax.tree.leaves(eta), from_key, strict=True)
    for (path, value), observed, random in leaves:
        bad = ~np.isfinite(value.astype(float)).reshape(len(some), -1).all(axis=1)
        if bad.any():
            where = f"{path_name('eta', path)} at xi = {some[np.argmax(bad)]}"
            raise ValueError(f"{name} gives NaN or infinity in {where}. Mend it there.")
        if not random:
            _check_known(name, path_name("eta", path), value, np.asarray(observed), some)


def _check_like(name: str, drawn: Any, eta: PyTree) -> None:
    """Raises where what is drawn is not like the noise of the samples."""
    if jax.tree.structure(drawn) != jax.tree.structure(eta):
        raise TypeError(
            f"{name} must return noise like the eta of the samples, {jax.tree.structure(eta)} with a leading axis of "
            f"length size, got {jax.tree.structure(drawn)}."
        )
    for (path, got), like in zip(jax.tree_util.tree_leaves_with_path(drawn), jax.tree.leaves(eta), strict=True):
        wanted = (CHECK_ROWS, *like.shape[1:])
        if got.shape != wanted:
            raise ValueError(
                f"{name} with size = {CHECK_ROWS} must return {path_name('eta', path)} of shape {wanted}, one row a "
                f"draw, got {got.shape}."
            )
        kinds = [[jnp.issubdtype(a.dtype, kind) for kind in (jnp.floating, jnp.integer)] for a in (got, like)]
        if kinds[0] != kinds[1]:
            raise TypeError(
                f"{name} returns {path_name('eta', path)} as {got.dtype}, and the samples hold it as {like.dtype}: "
                f"convert one of them with .astype."
            )


def _check_known(name: str, leaf: str, drawn: np.ndarray, observed: np.ndarray, xi: np.ndarray) -> None:
    """Raises where noise that is said to be known, given the context, is not what was observed there."""
    here, there = drawn[:, 0].astype(float), observed.astype(float)
    gap = np.abs(here - there).reshape(len(xi), -1).max(axis=1)
    wrong = gap > slack(np.float32) * (np.abs(here).max() + np.abs(there).max())
    if wrong.any() and np.all(drawn == drawn[:, :1]):
        row = int(np.argmax(wrong))
        raise ValueError(
            f"{name} does not use its key for {leaf}: all draws at xi = {xi[row]} are {drawn[row, 0]}, and the samples "
            f"hold {observed[row]} there. Draw eta given xi, with jax.random and the key."
        )


@program
def _drawn_at_contexts(draw: Callable, keys: Any, xi: Any) -> PyTree:
    return jax.vmap(lambda key, context: draw(key, context, CHECK_ROWS))(keys, xi)
