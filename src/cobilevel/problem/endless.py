"""Domains that have no ends: one that closes on itself, and one that goes on for ever."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..host import module_of, on_host, plain
from .array_checks import real_numbers
from .domain import Domain, as_floats, check_ends
from .precision import kept_digits

_SPREADS = 2.0  # standard deviations of the data that make the scale of a fitted map: half of it is nearly straight
_OF_NORMAL = 1.4826  # a normal distribution's standard deviation, in units of the median distance from the median
_NEAREST_END = 1e-12  # how near to the ends of the reference interval a context is placed


class Periodic(Domain):
    """``[lo, hi]`` with its ends joined: a context is a scalar, and ``lo + t`` the same one as ``hi + t``.

    Every finite number is inside: of ``Periodic(0, 24)``, 24.5 and -23.5 mean 0.5, which is what functions see.
    """

    lo: Any = eqx.field(converter=lambda v: real_numbers(v, "Periodic: lo"))
    hi: Any = eqx.field(converter=lambda v: real_numbers(v, "Periodic: hi"))

    def __check_init__(self):
        check_ends(self, "For several contexts use Mixed(hour=Periodic(0, 24), ...).")

    @property
    def shape(self):
        return ()

    @property
    def bounds(self):
        return self.lo[None], self.hi[None]

    @on_host
    def contains(self, xi):
        return module_of(xi).isfinite(xi)

    @plain
    def _turn(self, xi: Any) -> Any:
        """Contexts as shares of a turn, from 0 up to 1."""
        xp, xi = module_of(xi), as_floats(xi)
        lo, hi = (xp.asarray(end, xi.dtype) for end in (self.lo, self.hi))
        turns = (xi - lo) / (hi - lo)
        return turns - xp.floor(turns)

    @on_host
    def reference(self, xi):
        return 2 * self._turn(xi)[..., None] - 1

    @plain
    def wrap(self, xi):
        return kept_digits(self.wrapped(xi)) if jnp.issubdtype(xi.dtype, jnp.floating) else xi

    @on_host
    def wrapped(self, xi):
        xp = module_of(xi)
        lo, hi = (xp.asarray(end, xi.dtype) for end in (self.lo, self.hi))
        inside = (xi >= lo) & (xi < hi)
        return xp.where(inside | ~xp.isfinite(xi), xi, lo + (hi - lo) * self._turn(xi))

    @on_host
    def snap(self, xi, dtype):
        return self.wrapped(xi.astype(dtype))

    @on_host
    def embedded(self, xi):
        """On a circle as long as the reference interval."""
        xp, angle = module_of(xi), 2 * np.pi * self._turn(xi)
        return xp.stack([xp.cos(angle), xp.sin(angle)], axis=-1) / np.pi

    def __repr__(self):
        return f"Periodic({self.lo}, {self.hi})"


class Unbounded(Domain):
    r"""All real numbers: a context is a scalar, carried to ``(-1, 1)`` by $u = t / \sqrt{1 + t^2}$ with
    $t = (\xi - \text{center}) / \text{scale}$.

    Straight near the center, and falling off as slowly as a polynomial: polynomials in ``u`` resolve contexts within a
    few times `scale` well, and level off beyond. ``Unbounded.fitted(values)`` takes both numbers from data.
    """

    center: Any = eqx.field(converter=lambda v: real_numbers(v, "Unbounded: center"), default=0.0)
    scale: Any = eqx.field(converter=lambda v: real_numbers(v, "Unbounded: scale"), default=1.0)

    def __check_init__(self):
        if self.center.ndim or self.scale.ndim:
            raise ValueError(
                f"Unbounded takes two scalars, got shapes {self.center.shape} and {self.scale.shape}. For several "
                "contexts use Mixed(income=Unbounded(3e4, 2e4), ...)."
            )
        if not self.scale > 0:
            raise ValueError(
                f"Unbounded: scale must be positive, got {self.scale}; Unbounded.fitted(values) finds one."
            )

    @staticmethod
    def fitted(values: Any) -> "Unbounded":
        """Center and scale from data: their median, and twice their spread as the median distance from it shows it.

        Both ignore a few values that lie far out.
        """
        table = real_numbers(values, "Unbounded.fitted: values").ravel()
        center = np.median(table)
        spread = _OF_NORMAL * np.median(np.abs(table - center)) or np.std(table)
        if not spread > 0:
            raise ValueError(f"Unbounded.fitted: all {table.size} values are {center}; state Unbounded(center, scale).")
        return Unbounded(center, _SPREADS * spread)

    @property
    def shape(self):
        return ()

    @property
    def bounds(self):
        return np.array([-np.inf]), np.array([np.inf])

    @on_host
    def contains(self, xi):
        return module_of(xi).isfinite(xi)

    @on_host
    def reference(self, xi):
        xp, xi = module_of(xi), as_floats(xi)
        t = (xi - xp.asarray(self.center, xi.dtype)) / xp.asarray(self.scale, xi.dtype)
        return (t / xp.hypot(xp.ones_like(t), t))[..., None]

    @on_host
    def place(self, u):
        xp = module_of(u)
        u = xp.clip(u[..., 0], -1 + _NEAREST_END, 1 - _NEAREST_END)
        t = u / xp.sqrt((1 - u) * (1 + u))
        return xp.asarray(self.center, t.dtype) + xp.asarray(self.scale, t.dtype) * t

    @on_host
    def snap(self, xi, dtype):
        return xi.astype(dtype)

    def __repr__(self):
        return f"Unbounded({self.center}, {self.scale})"
