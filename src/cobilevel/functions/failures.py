"""What goes wrong inside a user's function, in words: which function it is, why it fails, and what to write instead."""

from typing import Any

import jax

_LOOP = (
    "a loop whose length depends on values (jax.lax.while_loop, or fori_loop between such bounds) has no gradient: use "
    "jax.lax.fori_loop between fixed whole numbers, or jax.lax.scan"
)
_CALLBACK = (
    "a callback into Python has no derivatives: write it in jax.numpy, or state its derivatives with jax.custom_jvp"
)
_SEQUENTIAL = 'a callback is asked for many samples at once: give it vmap_method="sequential"'
_RULE = (
    "derivatives stated with jax.custom_vjp cannot be taken twice, once forwards and once backwards: state them with "
    "jax.custom_jvp"
)
_FROM_OUTSIDE = (
    "it keeps values of an earlier call, or uses those of a function that is being traced around it: pass numbers, or "
    "arrays that hold values"
)
# Part of a message, and what to do about it; the first that is found counts.
_BY_WORDS = (
    ("Reverse-mode differentiation does not work for lax.while_loop", _LOOP),
    ("vmap_method", _SEQUENTIAL),
    ("allbacks do not support JVP", _CALLBACK),
    ("allback", _CALLBACK),
    ("custom_vjp", _RULE),
    ("custom_lin", _RULE),
)
_IF = "JAX traces it, so Python's if, while, and, or, not cannot look at values: use jnp.where or jax.lax.cond"
_NOT_NUMPY = "JAX traces it: use jax.numpy instead of numpy, and jnp.where instead of if"
_BY_KIND = (
    (jax.errors.TracerBoolConversionError, _IF),
    (jax.errors.TracerArrayConversionError, _NOT_NUMPY),
    (jax.errors.TracerIntegerConversionError, "JAX traces it, so a value cannot be a position or a size in Python"),
    (jax.errors.NonConcreteBooleanIndexError, "JAX traces it: instead of a mask as index use jnp.where(mask, a, b)"),
    (jax.errors.UnexpectedTracerError, _FROM_OUTSIDE),
    (jax.errors.ConcretizationTypeError, f"{_NOT_NUMPY}, and .astype(float) instead of float()"),
    (jax.errors.JAXTypeError, _NOT_NUMPY),
)


def remedy_for(error: BaseException) -> str:
    """What to do about an error that a user's function raised under JAX, as a sentence; empty where it is their own."""
    words = str(error)
    found = next((remedy for part, remedy in _BY_WORDS if part in words), "")
    found = found or next((remedy for kind, remedy in _BY_KIND if isinstance(error, kind)), "")
    return f" {found[0].upper()}{found[1:]}." if found else ""


def failure(what: str, error: BaseException, under: str = "fails") -> ValueError:
    """The error to raise, from the one a function raised: `what` names the function, `under` says where it failed."""
    lines = str(error).splitlines()
    reason = f": {lines[0].strip().rstrip('.')}" if lines and lines[0].strip() else ""
    return ValueError(f"{what} {under}: {type(error).__name__}{reason}.{remedy_for(error)}")


def shapes_in_words(tree: Any) -> Any:
    """Shapes and dtypes in the structure of a pytree."""
    return jax.tree.map(lambda a: f"{a.dtype}{list(a.shape)}", tree)
