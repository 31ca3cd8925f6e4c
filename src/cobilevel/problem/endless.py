"""Domains that have no ends: one that closes on itself, and one that goes on for ever."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from ..programs import arithmetic, put
from .array_checks import real_numbers
from .domain import Domain, check_ends
from .precision import kept_digits

_SPREADS = 2.0  # standard deviations of the data that make the scale of a fitted map: half of it is nearly straight
_OF_NORMAL = 1.4826  # a normal distribution's standard deviation, in units of the median distance from the median
_NEAREST_END = 1e-12  # how near to the ends of the reference interval a context is placed


def _floating(xi: Any) -> bool:
    return jnp.issubdtype(xi.dtype, jnp.floating)


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

    def contains(self, xi):
        xp = arithmetic(xi)
        return put(xp.isfinite(xp.asarray(xi)))

    def _turn(self, xi: Any, xp: Any) -> Any:
        """Contexts as shares of a turn, from 0 up to 1."""
        xi = xi if _floating(xi) else xi.astype(float)
        lo, hi = (xp.asarray(end, xi.dtype) for end in (self.lo, self.hi))
        turns = (xi - lo) / (hi - lo)
        return turns - xp.floor(turns)

    def reference(self, xi):
        xp = arithmetic(xi, self.bounds)
        return put(2 * self._turn(xp.asarray(xi), xp)[..., None] - 1)

    def wrap(self, xi):
        if not _floating(xi):
            return xi
        xp = arithmetic(xi, self.bounds)
        xi = xp.asarray(xi)
        lo, hi = (xp.asarray(end, xi.dtype) for end in (self.lo, self.hi))
        inside = (xi >= lo) & (xi < hi)
        return kept_digits(xp.where(inside | ~xp.isfinite(xi), xi, lo + (hi - lo) * self._turn(xi, xp)))

    def snap(self, xi, dtype):
        xp = arithmetic(xi, self.bounds)
        return self.wrap(xp.asarray(xi).astype(dtype))

    def embedded(self, xi):
        """On a circle as long as the reference interval."""
        xp = arithmetic(xi, self.bounds)
        angle = 2 * np.pi * self._turn(xp.asarray(xi), xp)
        return put(xp.stack([xp.cos(angle), xp.sin(angle)], axis=-1) / np.pi)

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

    def contains(self, xi):
        xp = arithmetic(xi)
        return put(xp.isfinite(xp.asarray(xi)))

    def reference(self, xi):
        xp = arithmetic(xi, (self.center, self.scale))
        xi = xp.asarray(xi)
        xi = xi if _floating(xi) else xi.astype(float)
        t = (xi - xp.asarray(self.center, xi.dtype)) / xp.asarray(self.scale, xi.dtype)
        return put((t / xp.hypot(xp.ones_like(t), t))[..., None])

    def place(self, u):
        xp = arithmetic(u, (self.center, self.scale))
        u = xp.clip(xp.asarray(u)[..., 0], -1 + _NEAREST_END, 1 - _NEAREST_END)
        t = u / xp.sqrt((1 - u) * (1 + u))
        return put(xp.asarray(self.center, t.dtype) + xp.asarray(self.scale, t.dtype) * t)

    def snap(self, xi, dtype):
        return put(arithmetic(xi).asarray(xi).astype(dtype))

    def __repr__(self):
        return f"Unbounded({self.center}, {self.scale})"
