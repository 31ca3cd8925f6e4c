r"""What Chebyshev coefficients say about a function: how fast they fall, how many an accuracy takes, where kinks are.

Pure NumPy. A function analytic within the ellipse of parameter $\rho > 1$ (foci at the ends of the interval, semi-axes
summing to $\rho$) has coefficients that fall like $\rho^{-k}$; one whose derivative of order ``m`` jumps, like
$k^{-m-1}$. Both laws are read off the coefficients, with the noise in these taken into account.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

GRIDS = (33, 129, 1025)  # Chebyshev points: the first where evaluations are expensive, else the others in turn
MOST_DEGREES = 48  # smooth functions that stand next to a kink
POWERS = (0, 1, 2, 3)  # the function jumps, or its first, second, third derivative


# -- Chebyshev points


def points(n: int) -> Float[np.ndarray, " n"]:
    """Chebyshev points of the second kind, from -1 to 1."""
    return np.sin(np.pi * np.arange(1 - n, n, 2) / (2 * (n - 1)))


def transform(values: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """Chebyshev coefficients of the polynomial through values at ``points(n)``, by FFT."""
    n = len(values) - 1
    flipped = values[::-1]
    coefficients = np.fft.rfft(np.concatenate([flipped, flipped[-2:0:-1]]), axis=0).real / n
    coefficients[[0, n]] /= 2
    return coefficients


def chop(envelope: Float[np.ndarray, " n"], tolerance: float) -> int:
    """How many coefficients to keep: where a falling envelope (relative to its start) turns into a plateau.

    The rule of Aurentz and Trefethen, *Chopping a Chebyshev series* (2017): a plateau is a stretch of a quarter of
    the length so far that hardly falls, the less strictly so the closer it is to the tolerance. All are kept where
    there is none.
    """
    n, j, ahead = len(envelope), 2, 0
    for j in range(2, n + 1):
        ahead = round(1.25 * j + 5)
        if ahead > n:
            return n
        here, there = envelope[j - 1], envelope[ahead - 1]
        if here == 0 or there / here > 3 * (1 - np.log(here) / np.log(tolerance)):
            break
    if envelope[j - 2] == 0:
        return j - 1
    floor = tolerance ** (7 / 6)
    above = int(np.sum(envelope >= floor))
    ahead = min(ahead, above + 1)
    curve = np.log10(np.maximum(envelope[:ahead], floor)) + np.linspace(0, -np.log10(tolerance) / 3, ahead)
    return max(int(np.argmin(curve)), 1)


# -- kinks


@dataclass(frozen=True)
class Kink:
    """Where the function, or (`power` 1 to 3) its derivative of that order, jumps; `gain`: the misfit it explains."""

    location: float
    power: int
    gain: float


_PLACES = points(257)[1:-1]  # where kinks are looked for at first


def _truncated_powers(u: np.ndarray, root: np.ndarray, places: ArrayLike, power: int) -> np.ndarray:
    """Truncated powers ``(u - t)_+^power``, one a place, scaled by the roots of the weights."""
    beyond = np.maximum(u[:, None] - places, 0)
    return root[:, None] * (beyond**power if power else np.sign(beyond))


def _strongest(u: np.ndarray, root: np.ndarray, smooth: np.ndarray, rest: np.ndarray, power: int) -> Kink:
    """The place that explains most of the `rest`: a scan, then closer and closer around its best place."""
    places = _PLACES
    for _ in range(4):
        column = _truncated_powers(u, root, places, power)
        free = column - smooth @ (smooth.T @ column)
        norm = np.sum(free**2, axis=0)
        usable = norm > 1e-20 * np.sum(column**2, axis=0)
        gain = np.where(usable, np.sum((free.T @ rest) ** 2, axis=1) / np.where(usable, norm, 1), 0)
        best = int(np.argmax(gain))
        kink = Kink(float(places[best]), power, float(gain[best]))
        places = np.linspace(places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)], 33)
    return kink


def find_kinks(
    u: Float[np.ndarray, " n"],
    values: Float[np.ndarray, "n d"],
    degrees: int = MOST_DEGREES,
    weights: Float[np.ndarray, " n"] | None = None,
    least: float = 0.0,
    powers: tuple[int, ...] = POWERS,
) -> tuple[Kink, ...]:
    """Up to two kinks of a function given by values on ``[-1, 1]``, the stronger first.

    A kink is a truncated power $(u - t)_+^m$ that explains more of what `degrees` polynomials leave of the values than
    at any other place. One that explains less than `least`, or a tenth of the first, is left out.
    """
    root = np.sqrt(np.ones(len(u)) if weights is None else weights)
    smooth = np.linalg.qr(np.polynomial.chebyshev.chebvander(u, degrees - 1) * root[:, None])[0]
    kinks: list[Kink] = []
    for _ in range(2):
        rest = values * root[:, None]
        rest = rest - smooth @ (smooth.T @ rest)
        enough = max(least, 0.1 * kinks[0].gain) if kinks else least
        if np.sum(rest**2) < enough:  # none explains more than there is
            break
        kink = max((_strongest(u, root, smooth, rest, power) for power in powers), key=lambda kink: kink.gain)
        if kink.gain <= least or kink.gain < enough:
            break
        kinks.append(kink)
        smooth = np.linalg.qr(np.hstack([smooth, _truncated_powers(u, root, kink.location, kink.power)]))[0]
    return tuple(kinks)


def find_noisy_kinks(
    u: Float[np.ndarray, " n"],
    values: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    degrees: int,
    bins: int = 1000,
) -> tuple[Kink, ...]:
    """Kinks that noisy values show: a truncated power that does, in one stroke, the work of many polynomials.

    It counts where fewer than half as many polynomials are wanted with it as without it, of up to `degrees`, and the
    fit is no worse. Noise has variance 1 at weight 1; a function is wanted while it is about twice its error. Samples
    are averaged into so many `bins` first.
    """
    groups = np.array_split(np.argsort(u), min(bins, len(u)))
    mass = np.array([weights[g].sum() for g in groups])
    mean = lambda column: np.stack([weights[g] @ column[g] for g in groups]) / np.maximum(mass, 1e-300)[:, None]
    u, values = mean(u[:, None])[:, 0], mean(values)
    root, d = np.sqrt(mass), values.shape[1]
    smooth = np.linalg.qr(np.polynomial.chebyshev.chebvander(u, min(degrees, len(u)) - 1) * root[:, None])[0]
    values_in, data = smooth.T @ (values * root[:, None]), values * root[:, None]
    count = np.arange(1, len(values_in) + 1)
    worth = np.cumsum(np.sum(values_in**2, axis=1)) - 4 * d * count
    alone, best, pick, price = count[np.argmax(worth)], np.max(worth), 0, 4 * (d + 2)
    for power in POWERS[:3]:  # with every number of polynomials at once
        column = _truncated_powers(u, root, _PLACES, power)
        inside = smooth.T @ column
        norm = np.sum(column**2, axis=0) - np.cumsum(inside**2, axis=0)
        match = column.T @ data - np.cumsum(inside[:, :, None] * values_in[:, None], axis=0)
        usable = norm > 1e-8 * np.sum(column**2, axis=0)
        gain = np.where(usable, np.sum(match**2, axis=2) / np.where(usable, norm, 1), 0)
        total = worth[:, None] + gain - price
        along = count[np.argmax(total, axis=0)]
        highest = np.where(2 * (along + 1) <= alone, np.max(total, axis=0), -np.inf)
        if highest.max() > best:
            best, pick = highest.max(), int(along[np.argmax(highest)])
    return find_kinks(u, values, pick, mass, least=price + 2 * np.log(len(u)), powers=POWERS[:3]) if pick else ()


# -- decay


@dataclass(frozen=True)
class Decay:
    r"""The coefficients of a function by degree, and the law they follow.

    - `coefficients`: their size by degree (the norm over components; in `dimension` > 1 over all of one total degree);
      `errors`: the standard error of each, or its rounding; `plateau`: the level below which they mean nothing.
    - `length`: how many stand out from the plateau; `size`: the root mean square of the function.
    - `kind`: ``"geometric"`` ($C \rho^{-k} k^{-p}$: analytic), ``"algebraic"`` ($C k^{-p}$: there are `kinks`),
      ``"finite"`` (a polynomial of degree `length` - 1), ``"noise"`` (nothing stands out from it), ``"unresolved"`` (no
      decay is seen, or there are too few degrees to see one).
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
        return np.asarray(self.scale * np.exp(-k * np.log(self.rho)) * k**-self.order if self.scale else 0 * k)

    def tail(self, degrees: int) -> float:
        """The root mean square contribution of all degrees from `degrees` on: as measured, and beyond by the law."""
        seen = np.sum(self.coefficients[degrees : self.length] ** 2)
        first = max(degrees, self.length, 1)
        near = np.arange(first, first + 64)
        beyond = np.sum(self.law(near) ** 2)
        if self.scale and self.rho == 1:  # the rest of the sum as an integral
            beyond += self.law(near[-1] + 0.5) ** 2 * (near[-1] + 0.5) / max(2 * self.order - 1, 0.1)
        elif self.scale:
            beyond += self.law(near[-1]) ** 2 / (self.rho**2 - 1)
        return float(np.sqrt((seen + beyond) / 2))  # a Chebyshev polynomial has the mean square 1/2

    def predict(self, accuracy: float, most: int = 10**6) -> int:
        """The number of functions that leaves a root mean square error of `accuracy`, relative to the function.

        No degree much beyond `most` is tried.
        """
        if not 0 < accuracy < np.inf:
            raise ValueError(f"accuracy must be a positive number such as 1e-3, got {accuracy!r}.")
        wanted = accuracy * self.size
        low, high = 0, 1
        while self.tail(high) > wanted and high < most:
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
            "noise": "do not stand out from the noise",
            "unresolved": "follow no clear law: noise, detail finer than was examined, or too few degrees",
        }[self.kind]
        seen = f"below {self.plateau:.1g} they are noise"
        return f"coefficients {law}; {seen if self.resolved else f'{len(self.coefficients)} are not enough'}"


class _Law(NamedTuple):
    scale: float
    rate: float
    order: float
    misfit: float  # minus twice the log-likelihood


def _fit_law(sizes: np.ndarray, errors: np.ndarray, first: int, rate: bool = True, order: bool = True) -> _Law:
    r"""The law $C \rho^{-k} k^{-p}$ that makes coefficients from degree `first` on most likely, each normal with the
    variance of the law plus that of its error. By Fisher scoring, from a straight line through the logarithms."""
    k = np.arange(first, len(sizes), dtype=float)
    squares, noise = sizes[first:] ** 2, np.maximum(errors[first:] ** 2, 1e-300)
    used = np.array([True, rate, order])
    design = np.stack([np.ones_like(k), -k, -np.log(k)], axis=1)[:, used]
    law = lambda theta: np.exp(np.clip(2 * design @ theta, -600, 600))
    misfit = lambda theta: float(np.sum(np.log(law(theta) + noise) + squares / (law(theta) + noise)))
    loud = np.flatnonzero(squares > 4 * noise)
    rows = loud if len(loud) >= used.sum() else slice(0, loud[-1] + 4 if len(loud) else None)
    theta = np.linalg.lstsq(design[rows], np.log(np.maximum(squares, noise)[rows]) / 2, rcond=None)[0]
    for _ in range(200):
        variance = law(theta) + noise
        share = law(theta) / variance
        pull = design.T @ (share * (squares / variance - 1))
        step = np.linalg.lstsq((design.T * share**2) @ design, pull, rcond=None)[0] / 2
        before = misfit(theta)
        theta = next((new for new in theta + np.outer(0.5 ** np.arange(20), step) if misfit(new) < before), theta)
        if before - misfit(theta) < 1e-9:
            break
    full = np.zeros(3)
    full[used] = theta
    return _Law(float(np.exp(np.clip(full[0], -600, 600))), float(full[1]), float(full[2]), misfit(theta))


def _following(decay: Decay, law: _Law, kind: str, **more: Any) -> Decay:
    """The decay with its law."""
    rho = float(np.exp(min(law.rate, 300)))
    return replace(decay, scale=law.scale, rho=rho, order=law.order, kind=kind, **more)


def from_values(
    evaluate: Callable[[np.ndarray], np.ndarray], eps: float, grids: Sequence[int] = GRIDS[1:]
) -> tuple[Decay, np.ndarray, np.ndarray]:
    """The decay of a function that can be evaluated to rounding on ``[-1, 1]``; with the points used and its values.

    More points are taken until the coefficients reach a plateau, as Chebfun does. Where they never do, the law decides
    whether more points would have helped or the function has a kink.
    """
    for n in grids:
        u = points(n)
        values = evaluate(u)
        sizes = np.linalg.norm(transform(values), axis=1)
        envelope = np.maximum.accumulate(sizes[::-1])[::-1]  # even and odd functions have every second one at zero
        length = chop(envelope / envelope[0], eps) if envelope[0] > 0 else 1
        if length < n:
            break
    weight = np.sqrt(np.maximum(1 - u**2, 0))  # Chebyshev points crowd at the ends
    size = float(np.sqrt(np.sum(weight @ values**2) / np.sum(weight)))
    return _from_sizes(sizes, envelope, length, size, eps), u, values


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
            return _following(decay, power, "algebraic")
        law = _fit_law(shown, errors, max(1, length // 4), order=False)  # too smooth for a kink, and too few to decide
    if law.order < -POWERS[-1]:  # a power that no pole explains: the decay is faster than geometric
        law = _fit_law(shown, errors, max(1, length // 2), order=False)
        return _following(decay, law, "geometric", entire=True)
    return _following(decay, law, "geometric")


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
    if not kinks and (geometric.rate <= 0 or (dimension > 1 and len(sizes) <= len(POWERS))):  # too few to tell
        return replace(decay, kind="unresolved", resolved=False)
    if kinks or (algebraic.order < 5 and algebraic.misfit < geometric.misfit - 6):
        return _following(decay, algebraic, "algebraic", kinks=kinks)
    if length < len(sizes):  # noise shows no faster fall than from the last to stand out from it to the next error
        fastest = max(float(np.log(sizes[length - 1] / errors[length])), 0.05)
        if geometric.rate > fastest:
            geometric = geometric._replace(rate=fastest, scale=sizes[length - 1] * np.exp(fastest * (length - 1)))
    return _following(decay, geometric, "geometric")
