"""Learned bases: recipes whose functions are found from a problem, kept as arrays once they are.

The policies at the decisions a solver meets are few among all functions of the context, however kinked each may be.
``Snapshot`` keeps the functions they share; ``Neural`` trains a network to provide such functions. How they learn is
another matter (``adaptive.learning``): here they are evaluated.
"""

from dataclasses import fields, replace
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..checks import positive, whole
from ..host import module_of
from ..programs import Held
from .base import Basis, check_count, plain_float, plain_integer

UNLEARNED = "{} has to learn its functions from a problem first: pass it to cb.solve or cb.reduce."


def given_options(basis: Basis, **defaults: Any) -> str:
    """The options set otherwise than by default, in words."""
    options = {name: getattr(basis, name) for name in defaults}
    return "".join(f", {name}={value!r}" for name, value in options.items() if value is not defaults[name] != value)


class Snapshot(Basis):
    r"""The functions that policies around ``x0`` share: a reduced basis, by proper orthogonal decomposition.

    The lower level is solved at ``x0`` and at random decisions near it in a rich `background` basis. The functions
    kept are orthonormal in $L^2$ of the observed contexts: first those that span the policy at ``x0`` (as many as ``y``
    has independent components), then the leading directions in which the policy changes with ``x``, then the constant.
    There may be fewer than ``n`` where the policies have no more to show.

    **Arguments:**

    - `n`: how many functions to keep; one for each component of ``y`` and a few more.
    - `background`: the basis to solve in; chosen when left out, hat functions for scalar contexts where the lower level
      has no noise, else polynomials.
    - `decisions`: how many decisions to look at, ``x0`` among them; `spread`: how far away, relative to its size.
      Near ones show best how the policy changes there; take wider ones where ``x`` is to go far without learning anew,
      as with ``reduce``.
    """

    n: int = eqx.field(static=True, converter=plain_integer)
    background: Basis | None = None
    decisions: int = eqx.field(static=True, converter=plain_integer, default=8)
    spread: float = eqx.field(static=True, converter=plain_float, default=0.05)
    rich: Basis | None = None  # the background used
    table: Float[Held, "raw n"] | None = None  # what of it was kept

    def __check_init__(self):
        check_count("Snapshot", self.n)
        whole("Snapshot: decisions", self.decisions, 2, "x0 and those near it")
        positive("Snapshot: spread", self.spread)
        if not isinstance(self.background, Basis | None):
            raise TypeError(
                f"Snapshot: background must be a basis such as BSpline(100, degree=1), got {self.background!r}; leave "
                "it out to have one chosen."
            )

    @property
    def learned(self):
        return self.table is not None

    def forgotten(self):
        return replace(self, rich=None, table=None)

    def evaluate(self, domain, xi):
        if self.rich is None or self.table is None:
            raise RuntimeError(UNLEARNED.format(self))
        phi = self.rich.evaluate(domain, xi)
        return phi @ self.table.astype(phi.dtype)

    def constant(self, domain):
        return None

    def __repr__(self):
        return f"Snapshot({self.n}{given_options(self, background=None, decisions=8, spread=0.05)})"


def with_one(phi: Float[Held, "... m"]) -> Float[Held, "... n"]:
    """Functions with the constant 1 before them."""
    xp = module_of(phi)
    return xp.concatenate([xp.ones_like(phi[..., :1]), phi], axis=-1)


def network(layers: tuple[Held, ...], u: Float[Held, "... d"]) -> Float[Held, "... n"]:
    """The constant 1, and the outputs of a network whose layers hold their biases as last row."""
    for depth, layer in enumerate(layers):
        u = (module_of(u).tanh(u) if depth else u) @ layer[:-1].astype(u.dtype) + layer[-1].astype(u.dtype)
    return with_one(u)


class Neural(Basis):
    """The constant and ``n - 1`` outputs of a network, trained so that they can express policies around ``x0``.

    At a few decisions the policy is a linear map of the features; network and maps together minimise the lower
    objective over the samples. Then the maps are dropped and the features kept, orthonormal over what was looked at.
    Meant for contexts of several dimensions, where products of one-dimensional functions become many; on an interval
    it takes about as many functions as polynomials do.

    **Arguments:**

    - `n`: how many functions; `width`, `depth`: the hidden layers of the network (tanh).
    - `steps`, `rate`: of Adam, the rate falling to zero as a half cosine.
    - `decisions`, `spread`: how many decisions to train at, ``x0`` among them, and how far away.
    - `seed`: of the first weights.
    """

    n: int = eqx.field(static=True, converter=plain_integer)
    width: int = eqx.field(static=True, converter=plain_integer, default=32)
    depth: int = eqx.field(static=True, converter=plain_integer, default=2)
    steps: int = eqx.field(static=True, converter=plain_integer, default=1000)
    rate: float = eqx.field(static=True, converter=plain_float, default=1e-2)
    decisions: int = eqx.field(static=True, converter=plain_integer, default=4)
    spread: float = eqx.field(static=True, converter=plain_float, default=0.05)
    seed: int = eqx.field(static=True, converter=plain_integer, default=0)
    layers: tuple[Held, ...] = eqx.field(converter=tuple, default=())  # what was learned

    def __check_init__(self):
        whole("Neural: n", self.n, 2, "the constant, and at least one function to learn")
        for name in ("width", "depth", "steps", "decisions"):
            whole(f"Neural: {name}", getattr(self, name))
        whole("Neural: seed", self.seed, 0)
        positive("Neural: rate", self.rate)
        positive("Neural: spread", self.spread)

    @property
    def learned(self):
        return bool(self.layers)

    def forgotten(self):
        return replace(self, layers=())

    def evaluate(self, domain, xi):
        if not self.learned:
            raise RuntimeError(UNLEARNED.format(self))
        return network(self.layers, domain.reference(xi))

    def constant(self, domain):
        if not self.learned:
            raise RuntimeError(UNLEARNED.format(self))
        return np.eye(1, 1 + self.layers[-1].shape[1])[0]

    def __repr__(self):
        options = {part.name: part.default for part in fields(self) if part.name not in ("n", "layers")}
        return f"Neural({self.n}{given_options(self, **options)})"
