r"""What Chebyshev coefficients say about a function: how fast they fall, and how many an accuracy takes.

Pure NumPy. A function analytic within the ellipse of parameter $\rho > 1$ (foci at the ends of the interval, semi-axes
summing to $\rho$) has coefficients that fall like $\rho^{-k}$; one whose derivative of order ``m`` jumps, like
$k^{-m-1}$. Both laws are read off the coefficients, with the noise in these taken into account.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import comb

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from .chebyshev import chop, envelope_of, points, rms, transform
from .kinks import POWERS, Kink

GRIDS = (129, 1025)  # Chebyshev points tried in turn; each grid holds the one before
FEW = (33,)  # those tried where evaluations are expensive
_ENTIRE = -3.0  # a power of k in front of the geometric law that no pole explains: the decay is faster than geometric
_FEWEST_DEGREES = 5  # in several dimensions, from which a law is read off
_MOST = 10**6  # the largest number of functions that is predicted


@dataclass(frozen=True)
class Decay:
    r"""The coefficients of a function by degree, and the law they follow.

    - `coefficients`: their size by degree (the norm over components; in `dimension` > 1 over all of one total degree);
      `errors`: the standard error of each, or its rounding; `plateau`: the level below which they mean nothing.
    - `length`: how many stand out of the plateau; `size`: the root mean square of the function.
    - `kind`: ``"geometric"`` ($C \rho^{-k} k^{-p}$: analytic), ``"algebraic"`` ($C k^{-p}$: there are `kinks`),
      ``"finite"`` (a polynomial of degree `length` - 1), ``"noise"`` (nothing stands out of it), ``"unresolved"`` (no
      fall is seen, or too few degrees to see one).
    - `rho`, `order`, `scale`: the parameters $\rho$ (1 where algebraic), $p$ and $C$ of the law.
    - `entire`: whether the decay is faster than any geometric one; `rho` is then the rate reached where it was seen.
    - `resolved`: whether coefficients were seen to reach the plateau.
    """

    coefficients: Float[np.ndarray, " K"]
    errors: Float[np.ndarray, " K"]
    plateau: float
    length: int
    size: float
    kind: str
    rho: float = float("inf")
    order: float = 0.0
    scale: float = 0.0
    entire: bool = False
    resolved: bool = True
    kinks: tuple[Kink, ...] = ()
    dimension: int = 1

    def law(self, degree: ArrayLike) -> Float[np.ndarray, "*n"]:
        """The fitted size of the coefficient of degree ``k >= 1``."""
        k = np.asarray(degree, dtype=float)
        law = self.scale * np.exp(-k * np.log(self.rho)) * k**-self.order if self.scale else np.zeros_like(k)
        return np.asarray(law)

    def tail(self, degrees: int) -> float:
        """The root mean square of what all degrees from `degrees` on contribute: as measured, and beyond by the law."""
        seen = np.sum(self.coefficients[degrees : self.length] ** 2)
        first = max(degrees, self.length, 1)
        near = np.arange(first, first + 64)
        beyond = np.sum(self.law(near) ** 2)
        if self.scale and self.rho == 1:  # the rest of the sum as an integral
            beyond += self.law(near[-1] + 0.5) ** 2 * (near[-1] + 0.5) / max(2 * self.order - 1, 0.1)
        elif self.scale:
            beyond += self.law(near[-1]) ** 2 / (self.rho**2 - 1)
        return float(np.sqrt((seen + beyond) / 2))  # a Chebyshev polynomial has the mean square 1/2

    def predict(self, accuracy: float) -> int:
        """The number of functions that leaves a root mean square error of `accuracy`, relative to the function."""
        if not 0 < accuracy < np.inf:
            raise ValueError(f"accuracy must be a positive number such as 1e-3, got {accuracy!r}.")
        wanted = accuracy * self.size
        low, high = 0, 1
        while self.tail(high) > wanted and high < _MOST:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.tail(middle) > wanted else (low, middle)
        return comb(high - 1 + self.dimension, self.dimension)

    def __str__(self):
        law = {
            "geometric": f"fall like {self.rho:.3g}^-k" + (" and faster: an entire function" if self.entire else ""),
            "algebraic": f"fall like k^-{self.order:.2g} only",
            "finite": f"end at degree {self.length - 1}: a polynomial",
            "noise": "do not stand out of the noise",
            "unresolved": "show no law: noise, detail finer than was looked at, or too few degrees",
        }[self.kind]
        end = (
            f"; below {self.plateau:.1g} they are noise"
            if self.resolved
            else f"; {len(self.coefficients)} are not enough"
        )
        return f"coefficients {law}{end}"


@dataclass(frozen=True)
class _DecayLaw:
    """A fitted law: its parameters, and minus twice its log-likelihood."""

    scale: float
    rate: float
    order: float
    misfit: float


def _fit_law(sizes: np.ndarray, errors: np.ndarray, first: int, rate: bool = True, order: bool = True) -> _DecayLaw:
    r"""The law $C \rho^{-k} k^{-p}$ that makes the squares of the coefficients from degree `first` on most likely.

    Each coefficient counts as normal with the variance of the law plus that of its error: the law is of their scale,
    as they change sign and vanish. Those lost in noise then say that they are small, and no more. By Fisher scoring,
    from a straight line through the logarithms.
    """
    k = np.arange(first, len(sizes), dtype=float)
    squares, noise = sizes[first:] ** 2, np.maximum(errors[first:] ** 2, 1e-300)
    used = np.array([True, rate, order])
    design = np.stack([np.ones_like(k), -k, -np.log(k)], axis=1)[:, used]
    law = lambda theta: np.exp(np.clip(2 * design @ theta, -600, 600))
    misfit = lambda theta: float(np.sum(np.log(law(theta) + noise) + squares / (law(theta) + noise)))

    def score(theta):
        for _ in range(200):
            variance = law(theta) + noise
            share = law(theta) / variance
            pull = design.T @ (share * (squares / variance - 1))
            step = np.linalg.lstsq((design.T * share**2) @ design, pull, rcond=None)[0] / 2
            before = misfit(theta)
            length = next((half for half in 0.5 ** np.arange(20) if misfit(theta + half * step) < before), 0)
            theta = theta + length * step
            if before - misfit(theta) < 1e-9:
                break
        return theta

    loud = np.flatnonzero(squares > 4 * noise)
    rows = loud if len(loud) >= used.sum() else slice(0, loud[-1] + 4 if len(loud) else None)
    theta = score(np.linalg.lstsq(design[rows], np.log(np.maximum(squares, noise)[rows]) / 2, rcond=None)[0])
    full = np.zeros(3)
    full[used] = theta
    return _DecayLaw(float(np.exp(np.clip(full[0], -600, 600))), float(full[1]), float(full[2]), misfit(theta))


def _with_law(decay: Decay, law: _DecayLaw) -> Decay:
    """The decay with its law: geometric where that part of the law brings about most of the fall, else algebraic."""
    return replace(decay, scale=law.scale, rho=float(np.exp(min(law.rate, 300))), order=law.order)


def from_values(
    evaluate: Callable[[np.ndarray], np.ndarray], eps: float, grids: tuple[int, ...] = GRIDS
) -> tuple[Decay, np.ndarray, np.ndarray]:
    """The decay of a function that can be evaluated to rounding on ``[-1, 1]``; with the points used and its values.

    More points are taken until the coefficients reach a plateau, as Chebfun does. Where they never do, the law decides
    whether more points would have helped or the function has a kink.
    """
    u, length = points(grids[0]), 0
    values = evaluate(u)
    sizes = envelope = np.zeros(1)
    for n in grids:
        if n > len(u):
            stride = (n - 1) // (len(u) - 1)
            grown, u = np.empty((n, *values.shape[1:])), points(n)
            new = np.arange(n) % stride != 0
            grown[~new], grown[new] = values, evaluate(u[new])
            values = grown
        sizes = np.linalg.norm(transform(values), axis=1)
        envelope = envelope_of(sizes)
        length = chop(envelope / envelope[0], eps) if envelope[0] > 0 else 1
        if length < n:
            break
    return _from_sizes(sizes, envelope, length, rms(u, values), eps), u, values


def _from_sizes(sizes: np.ndarray, envelope: np.ndarray, length: int, size: float, eps: float) -> Decay:
    resolved, top = length < len(sizes), envelope[0]
    if not resolved:
        usable = sizes[: len(sizes) // 3]  # the last ones hold what finer grids would show
        half = _fit_law(usable, np.full(len(usable), eps * top), len(usable) // 2, rate=False)
        if half.order < 0.5:  # flat: noise rather than a law
            level = np.sqrt(np.mean(usable[len(usable) // 2 :] ** 2))
            noisy = from_coefficients(usable, np.full(len(usable), level), size)
            return replace(noisy, kind="unresolved", resolved=False) if noisy.kind == "noise" else noisy
        sizes, length = usable, len(usable)
    floor = max(float(np.sqrt(np.mean(sizes[length:] ** 2))) if resolved else 0.0, eps * top)
    decay = Decay(sizes, np.full(len(sizes), floor), floor, length, size, "finite", resolved=resolved)
    last, mean_fall = envelope[length - 1], np.log(top / envelope[length - 1]) / max(length - 1, 1) if top > 0 else 0.0
    if top == 0 or (resolved and np.log(last / floor) > max(np.log(1e3), 3 * mean_fall)):
        return decay  # it ends where no law would have ended
    shown = sizes[: length + length // 4 + 5]
    errors = np.full(len(shown), floor)
    law = _fit_law(shown, errors, max(1, length // 4), order=length > 8)
    geometric, algebraic = law.rate * length, max(law.order, 0) * np.log(max(length, 2))
    if geometric <= algebraic:
        power = _fit_law(shown, errors, max(1, length // 4), rate=False)
        if resolved or length > 100 or power.order < POWERS[-1] + 1.5:
            return replace(_with_law(decay, power), kind="algebraic")
        law = _fit_law(shown, errors, max(1, length // 4), order=False)  # too smooth for a kink, and too few to decide
    if law.order < _ENTIRE:
        law = _fit_law(shown, errors, max(1, length // 2), order=False)
        return replace(_with_law(decay, law), kind="geometric", entire=True)
    return replace(_with_law(decay, law), kind="geometric")


def from_coefficients(
    sizes: Float[np.ndarray, " K"],
    errors: Float[np.ndarray, " K"],
    size: float,
    kinks: tuple[Kink, ...] = (),
    dimension: int = 1,
    counts: Float[np.ndarray, " K"] | float = 1.0,
) -> Decay:
    """The decay of a function whose coefficients are known up to the given standard errors, and its kinks if any.

    `counts` says how many numbers each size is the norm of. `length` cuts where what follows is, all in all, less than
    its errors and two standard deviations of their squares: kept, it would add more noise than it explains. A pure
    geometric or a pure algebraic law is fitted: noise leaves too few coefficients for both.
    """
    worth = sizes**2 - (2 + np.sqrt(8 / np.asarray(counts))) * errors**2
    length = 1 + int(np.argmax(np.cumsum(worth)))
    plateau = float(np.sqrt(np.mean(errors[1:] ** 2))) if len(errors) > 1 else float(errors[0])
    decay = Decay(sizes, errors, plateau, length, size, "noise", resolved=length < len(sizes), dimension=dimension)
    if np.sum(sizes[1:length] ** 2) < 9 * np.sum(errors[1:length] ** 2) or length < 2:
        return replace(decay, length=1)
    geometric, algebraic = _fit_law(sizes, errors, 1, order=False), _fit_law(sizes, errors, 1, rate=False)
    if not kinks and (geometric.rate <= 0 or (dimension > 1 and len(sizes) < _FEWEST_DEGREES)):
        return replace(decay, kind="unresolved", resolved=False)
    if kinks or (algebraic.order < 5 and algebraic.misfit < geometric.misfit - 6):
        return replace(_with_law(decay, algebraic), kind="algebraic", kinks=kinks)
    if length < len(sizes):  # noise shows no faster fall than from the last to stand out of it to the next error
        fastest = max(float(np.log(sizes[length - 1] / errors[length])), 0.05)
        if geometric.rate > fastest:
            geometric = replace(geometric, rate=fastest, scale=sizes[length - 1] * np.exp(fastest * (length - 1)))
    return replace(_with_law(decay, geometric), kind="geometric")
