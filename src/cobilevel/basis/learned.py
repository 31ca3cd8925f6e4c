"""Learned bases: recipes whose functions are found from a problem, kept as arrays once they are.

The policies at the decisions a solver meets are few among all functions of the context, however kinked each may be.
``Snapshot`` keeps the functions they share; ``Neural`` trains a network to provide such functions. For contexts of many
coordinates, ``KernelFeatures`` are functions of all of them together, and ``Rotated`` of a few directions. How they
learn is another matter (``adaptive.learning``): here they are evaluated.
"""

from dataclasses import fields, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from ..ground import Held, module_of, positive, whole
from ..problem import Box
from .base import Basis, plain_number
from .families import Chebyshev, ProductBasis
from .index_sets import TotalDegree

KERNELS = ("gaussian", "matern")
METRICS = ("isotropic", "coordinates", "directions")


class LearnedBasis(Basis):
    """A basis with arrays that are learned from a problem."""

    to_learn: ClassVar[tuple[str, ...]]  # the names of these fields, the first an array or a tuple of arrays

    def on_cube(self, u: Any) -> Any:
        """The functions at places on the reference cube."""
        raise NotImplementedError

    def evaluate(self, domain, xi):
        return self.on_cube(domain.reference(xi))

    @property
    def learned(self):
        return bool(jax.tree.leaves(getattr(self, self.to_learn[0])))

    def forgotten(self):
        return replace(self, **{part.name: part.default for part in fields(self) if part.name in self.to_learn})

    def _parts(self) -> tuple[Any, ...]:
        """What was learned, in the order of the names."""
        if not self.learned:
            raise RuntimeError(
                f"{self} must first learn its functions from a problem. Pass it to cb.solve or cb.reduce."
            )
        return tuple(getattr(self, name) for name in self.to_learn)

    def __repr__(self):
        options = {p.name: p.default for p in fields(self) if p.name not in ("n", *self.to_learn)}
        given = {name: value for name in options if (value := getattr(self, name)) is not options[name] != value}
        words = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"{type(self).__name__}({self.n}{words})"  # pyright: ignore[reportAttributeAccessIssue]


class Snapshot(LearnedBasis):
    r"""The functions that policies around ``x0`` share: a reduced basis, by proper orthogonal decomposition.

    The lower level is solved at ``x0`` and at random decisions near it in a rich `background` basis. The functions
    kept are orthonormal in $L^2$ of the observed contexts: first those that span the policy at ``x0`` (as many as ``y``
    has independent components), then the leading directions in which the policy changes with ``x``, then the constant.
    There may be fewer than ``n`` if the policies span no more.

    **Arguments:**

    - `n`: how many functions to keep; one for each component of ``y`` and a few more.
    - `background`: the basis to solve in; by default, hat functions for scalar contexts if the lower level has no
      noise, else polynomials.
    - `decisions`: how many decisions to look at, including ``x0``; `spread`: how far away, relative to its size.
      Nearby decisions show best how the policy changes there; use a larger spread if ``x`` will go far without learning
      again, as with ``reduce``.
    - `rich`, `table`: filled in by learning.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Snapshot(3))
    >>> solution.basis.size
    3
    """

    n: int = eqx.field(static=True, converter=plain_number)
    background: Basis | None = None
    decisions: int = eqx.field(static=True, converter=plain_number, default=8)
    spread: float = eqx.field(static=True, converter=plain_number, default=0.05)
    rich: Basis | None = None  # the background used
    table: Float[Held, "raw n"] | None = None  # what of it was kept

    to_learn = ("table", "rich")

    def __check_init__(self):
        whole("Snapshot: n", self.n, what="the number of functions")
        whole("Snapshot: decisions", self.decisions, 2, "x0 and those near it")
        positive("Snapshot: spread", self.spread)
        if not isinstance(self.background, Basis | None):
            raise TypeError(
                f"Snapshot: background must be a basis such as BSpline(100, degree=1), got {self.background!r}; by "
                "default, one is chosen."
            )

    def evaluate(self, domain, xi):
        table, rich = self._parts()
        phi = rich.evaluate(domain, xi)
        return phi @ table.astype(phi.dtype)

    def constant(self, domain):
        return None


def _with_one(phi: Float[Held, "... m"]) -> Float[Held, "... n"]:
    """Functions with the constant 1 before them."""
    xp = module_of(phi)
    return xp.concatenate([xp.ones_like(phi[..., :1]), phi], axis=-1)


def layered(layers: tuple[Held, ...], u: Float[Held, "... d"]) -> Float[Held, "... n"]:
    """The constant 1, and the outputs of a network whose layers hold their biases as last row."""
    for depth, layer in enumerate(layers):
        u = (module_of(u).tanh(u) if depth else u) @ layer[:-1].astype(u.dtype) + layer[-1].astype(u.dtype)
    return _with_one(u)


class Neural(LearnedBasis):
    """The constant and ``n - 1`` outputs of a network, trained so that they can express policies around ``x0``.

    At a few decisions the policy is a linear map of the features; the network and the maps together minimise the lower
    objective over the samples. The maps are then dropped and the features kept, orthonormal over the samples used.
    Meant for contexts of several dimensions, where there are many products of one-dimensional functions; on an interval
    it takes about as many functions as polynomials do.

    **Arguments:**

    - `n`: how many functions; `width`, `depth`: the hidden layers of the network (tanh).
    - `steps`, `rate`: the steps and the learning rate of Adam; the rate decays to zero as a half cosine.
    - `decisions`, `spread`: how many decisions to train at, including ``x0``, and how far away.
    - `seed`: the seed of the initial weights.
    - `layers`: filled in by learning.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Neural(3, width=4, depth=1, steps=20))
    >>> solution.basis.size
    3
    """

    n: int = eqx.field(static=True, converter=plain_number)
    width: int = eqx.field(static=True, converter=plain_number, default=32)
    depth: int = eqx.field(static=True, converter=plain_number, default=2)
    steps: int = eqx.field(static=True, converter=plain_number, default=1000)
    rate: float = eqx.field(static=True, converter=plain_number, default=1e-2)
    decisions: int = eqx.field(static=True, converter=plain_number, default=4)
    spread: float = eqx.field(static=True, converter=plain_number, default=0.05)
    seed: int = eqx.field(static=True, converter=plain_number, default=0)
    layers: tuple[Held, ...] = eqx.field(converter=tuple, default=())  # what was learned

    to_learn = ("layers",)

    def __check_init__(self):
        whole("Neural: n", self.n, 2, "the constant, and at least one function to learn")
        for name in ("width", "depth", "steps", "decisions"):
            whole(f"Neural: {name}", getattr(self, name))
        whole("Neural: seed", self.seed, 0)
        positive("Neural: rate", self.rate)
        positive("Neural: spread", self.spread)

    def on_cube(self, u: Any) -> Any:
        (layers,) = self._parts()
        return layered(layers, u)

    def constant(self, domain):
        (layers,) = self._parts()
        return np.eye(1, 1 + layers[-1].shape[1])[0]


def kernel_profile(kernel: str, squares: Any) -> Any:
    """The kernel as a function of the squared distance, in units of its scale; in NumPy or JAX, as they come."""
    xp = module_of(squares)
    if kernel == "gaussian":
        return xp.exp(-squares / 2)
    r = xp.sqrt(5 * squares + 1e-30)  # differentiable at 0 too
    return (1 + r + r**2 / 3) * xp.exp(-r)


def kernel_slope(kernel: str, squares: np.ndarray) -> np.ndarray:
    """The derivative of the profile in the squared distance."""
    if kernel == "gaussian":
        return -np.exp(-squares / 2) / 2
    r = np.sqrt(5 * squares)
    return -5 / 6 * (1 + r) * np.exp(-r)


def squared_distances(one: Any, other: Any) -> Any:
    """Between the rows of two tables, by one product of matrices."""
    xp = module_of(one)
    lengths = xp.sum(one**2, axis=-1)[..., None] + xp.sum(other**2, axis=-1)
    return xp.maximum(lengths - 2 * one @ other.T, 0)


class KernelFeatures(LearnedBasis):
    r"""The constant and the ``n - 1`` leading functions of a kernel, by Nystrom's method.

    The kernel $k(|A^T (u - u')| / s)$ on the reference cube is evaluated at landmarks drawn from observed contexts.
    The eigenvectors of its matrix there give its smoothest functions first, so that ``n`` sets how fine they are. Wide
    kernels begin with nearly linear functions, then nearly quadratic ones. There may be fewer than ``n`` if rounding
    hides the rest.

    **Arguments:**

    - `n`: how many functions.
    - `kernel`: ``"gaussian"``, or ``"matern"`` (5/2) for rougher policies.
    - `scale`: the length $s$ on the reference cube, whose sides are 2; by default chosen from the data.
    - `metric`: which contexts are near. ``"isotropic"``: all coordinates alike. ``"coordinates"``: each by how much the
      policy varies with it. ``"directions"``: the same for directions, from the mean of the outer products of the
      policy's gradients, normalised so that $A A^T$ has trace ``d``. By default chosen from the data.
    - `seed`: the seed of the landmarks.
    - `axes`, `landmarks`, `table`: filled in by learning.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, dimension=3, train=300, test=10)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.KernelFeatures(6, scale=2.0, metric="isotropic"))
    >>> solution.basis.size
    6
    """

    n: int = eqx.field(static=True, converter=plain_number)
    kernel: str = eqx.field(static=True, default="gaussian")
    scale: float | None = eqx.field(static=True, converter=plain_number, default=None)
    metric: str | None = eqx.field(static=True, default=None)
    seed: int = eqx.field(static=True, converter=plain_number, default=0)
    axes: Float[Held, "d k"] | None = None  # learned: A / s
    landmarks: Float[Held, "p k"] | None = None
    table: Float[Held, "p m"] | None = None

    to_learn = ("table", "axes", "landmarks")

    def __check_init__(self):
        whole("KernelFeatures: n", self.n, 2, "the constant, and at least one function of the kernel")
        whole("KernelFeatures: seed", self.seed, 0)
        if self.kernel not in KERNELS:
            raise ValueError(f"KernelFeatures: kernel must be one of {', '.join(KERNELS)}, got {self.kernel!r}.")
        if self.metric is not None and self.metric not in METRICS:
            raise ValueError(
                f"KernelFeatures: metric must be one of {', '.join(METRICS)}, or None (chosen from data), got "
                f"{self.metric!r}."
            )
        if self.scale is not None:
            positive("KernelFeatures: scale", self.scale)

    def on_cube(self, u: Any) -> Any:
        table, axes, landmarks = (part.astype(u.dtype) for part in self._parts())
        return _with_one(kernel_profile(self.kernel, squared_distances(u @ axes, landmarks)) @ table)

    def constant(self, domain):
        return np.eye(1, 1 + self._parts()[0].shape[1])[0]


class Rotated(LearnedBasis):
    r"""A basis in ``k`` linear combinations of the context's coordinates, learned from the problem.

    For policies $y^\star(\xi) = h(a_1 \cdot \xi, \dots, a_k \cdot \xi)$ that vary along few directions; products over
    the coordinates themselves would take very many functions. Directions come from the gradients of a rough fit and are
    then refined together with polynomials in them, by Gauss-Newton steps on the lower objective. Beyond the contexts
    observed along a direction, the policy is extended as a constant.

    **Arguments:**

    - `k`: how many directions, one to three or so.
    - `basis`: a family in ``k`` dimensions; by default ``Chebyshev(6, index=TotalDegree())``.
    - `axes`, `shift`: filled in by learning.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, dimension=3, train=300, test=10)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Rotated(1, cb.Chebyshev(4)))
    >>> solution.basis.size
    4
    """

    k: int = eqx.field(static=True, converter=plain_number)
    basis: Basis = eqx.field(default_factory=lambda: Chebyshev(6, index=TotalDegree()))
    axes: Float[Held, "d k"] | None = None  # learned, so that observed contexts fill the cube
    shift: Float[Held, " k"] | None = None

    to_learn = ("axes", "shift")

    def __check_init__(self):
        whole("Rotated: k", self.k, 1, "the directions")
        if not isinstance(self.basis, ProductBasis):
            raise TypeError(f"Rotated: basis must be a family such as Chebyshev(6), got {self.basis!r}.")

    @property
    def cube(self) -> Box:
        """Where the basis lives."""
        return Box(-np.ones(self.k), np.ones(self.k))

    def projected(self, u: Any) -> Any:
        """Places on the reference cube as places in the cube of the directions; those further out lie on its faces."""
        axes, shift = (part.astype(u.dtype) for part in self._parts())
        z = u @ axes + shift
        return module_of(z).clip(z, -1, 1)

    def on_cube(self, u: Any) -> Any:
        return self.basis.evaluate(self.cube, self.projected(u))

    def count(self, domain):
        return self.basis.count(self.cube)

    def constant(self, domain):
        return self.basis.constant(self.cube)

    def __repr__(self):
        return f"Rotated({self.k}, {self.basis!r})"
