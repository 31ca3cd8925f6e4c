"""What goes wrong inside a user's function, in words: which function it is, why it fails, and what to write instead.

These are errors that a function raises. What it returns (a vector, an integer) is checked in ``study.study``.
"""

from typing import Any

import jax

_CALLBACK = (
    "a callback into Python has no derivatives: write it in jax.numpy, or define its derivatives with jax.custom_jvp"
)
_RULE = (
    "derivatives defined with jax.custom_vjp do not support the second derivatives (forward over reverse) needed here: "
    "use jax.custom_jvp"
)
_NOT_NUMPY = "JAX traces it: use jax.numpy instead of numpy, and jnp.where instead of if"
_ORDER = "there is no such column: the arguments come in the order x, y, xi, eta"
# Part of a message, or the kind of an error, and what to do about it; the first that fits counts.
_REMEDIES: tuple[tuple[Any, str], ...] = (
    (
        "Reverse-mode differentiation does not work for lax.while_loop",
        "a loop whose length depends on values (jax.lax.while_loop, or fori_loop between such bounds) has no gradient: "
        "use jax.lax.fori_loop with fixed bounds, or jax.lax.scan",
    ),
    ("vmap_method", 'a callback is called under vmap: give it vmap_method="sequential"'),
    ("allback", _CALLBACK),
    ("custom_vjp", _RULE),
    ("custom_lin", _RULE),
    (
        jax.errors.TracerBoolConversionError,
        "JAX traces it, so Python's if, while, and, or, not cannot use its values: use jnp.where or jax.lax.cond",
    ),
    (jax.errors.TracerArrayConversionError, _NOT_NUMPY),
    (jax.errors.TracerIntegerConversionError, "JAX traces it, so a value cannot be an index or a size in Python"),
    (jax.errors.NonConcreteBooleanIndexError, "JAX traces it: instead of a mask as an index use jnp.where(mask, a, b)"),
    (
        jax.errors.UnexpectedTracerError,
        "it uses traced values of an earlier call, or of a function around it that is being traced: pass numbers, or "
        "concrete arrays",
    ),
    (jax.errors.ConcretizationTypeError, f"{_NOT_NUMPY}, and .astype(float) instead of float()"),
    (jax.errors.JAXTypeError, _NOT_NUMPY),
    (KeyError, _ORDER),
    ("string indexing", _ORDER),
)


def failure(what: str, error: BaseException, under: str) -> ValueError:
    """The error to raise, from the one a function raised: `what` names the function, `under` says where it failed."""
    words = str(error)
    lines = words.splitlines()
    reason = f": {lines[0].strip().rstrip('.')}" if lines and lines[0].strip() else ""
    fits = lambda sign: sign in words if isinstance(sign, str) else isinstance(error, sign)
    remedy = next((f" {remedy[0].upper()}{remedy[1:]}." for sign, remedy in _REMEDIES if fits(sign)), "")
    return ValueError(f"{what} {under}: {type(error).__name__}{reason}.{remedy}")
