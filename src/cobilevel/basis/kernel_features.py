"""Functions of a kernel: for contexts of many coordinates that all act together."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from ..checks import positive, whole
from ..host import module_of
from ..programs import Held
from .base import Basis, plain_float, plain_integer
from .learned import UNLEARNED, given_options, with_one

KERNELS = ("gaussian", "matern")
METRICS = ("isotropic", "coordinates", "directions")


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


class KernelFeatures(Basis):
    r"""The constant and the ``n - 1`` leading functions of a kernel, by Nystrom's method.

    The kernel $k(|A^T (u - u')| / s)$ on the reference cube is seen at landmarks, contexts drawn from those observed.
    The eigenvectors of its matrix there give its smoothest functions first, so that ``n`` says how fine they are. Wide
    kernels begin with nearly linear functions, then nearly quadratic ones. There may be fewer than ``n`` where rounding
    hides the rest.

    **Arguments:**

    - `n`: how many functions.
    - `kernel`: ``"gaussian"``, or ``"matern"`` (5/2) for rougher policies.
    - `scale`: the length $s$ on the reference cube, whose sides are 2; chosen from the data when left out.
    - `metric`: what counts as near. ``"isotropic"``: all coordinates alike. ``"coordinates"``: each by how much the
      policy varies with it. ``"directions"``: the same for directions, from the mean of the outer products of the
      policy's gradients, normalised so that $A A^T$ has trace ``d``. Chosen from the data when left out.
    - `seed`: of the landmarks.
    """

    n: int = eqx.field(static=True, converter=plain_integer)
    kernel: str = eqx.field(static=True, default="gaussian")
    scale: float | None = eqx.field(static=True, converter=plain_float, default=None)
    metric: str | None = eqx.field(static=True, default=None)
    seed: int = eqx.field(static=True, converter=plain_integer, default=0)
    axes: Float[Held, "d k"] | None = None  # learned: A / s
    landmarks: Float[Held, "p k"] | None = None
    table: Float[Held, "p m"] | None = None

    def __check_init__(self):
        whole("KernelFeatures: n", self.n, 2, "the constant, and at least one function of the kernel")
        whole("KernelFeatures: seed", self.seed, 0)
        if self.kernel not in KERNELS:
            raise ValueError(f"KernelFeatures: kernel must be one of {', '.join(KERNELS)}, got {self.kernel!r}.")
        if self.metric is not None and self.metric not in METRICS:
            raise ValueError(
                f"KernelFeatures: metric must be one of {', '.join(METRICS)}, or left out to be chosen, got "
                f"{self.metric!r}."
            )
        if self.scale is not None:
            positive("KernelFeatures: scale", self.scale)

    @property
    def learned(self):
        return self.table is not None

    def forgotten(self):
        return replace(self, axes=None, landmarks=None, table=None)

    def evaluate(self, domain, xi):
        if self.axes is None or self.landmarks is None or self.table is None:
            raise RuntimeError(UNLEARNED.format(self))
        u = domain.reference(xi)
        axes, landmarks, table = (part.astype(u.dtype) for part in (self.axes, self.landmarks, self.table))
        phi = kernel_profile(self.kernel, squared_distances(u @ axes, landmarks)) @ table
        return with_one(phi)

    def constant(self, domain):
        if self.table is None:
            raise RuntimeError(UNLEARNED.format(self))
        return np.eye(1, 1 + self.table.shape[1])[0]

    def __repr__(self):
        return f"KernelFeatures({self.n}{given_options(self, kernel='gaussian', scale=None, metric=None, seed=0)})"
