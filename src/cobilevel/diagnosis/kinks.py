"""Where a function of one variable, or one of its derivatives, jumps: from exact values, and through noise."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .chebyshev import points

POWERS = (0, 1, 2, 3)  # the function jumps, or its first, second, third derivative
_SMOOTH = 48  # polynomials that explain the smooth part, where there is no noise
_BINS = 1000  # noisy samples are averaged into that many before they are searched


@dataclass(frozen=True)
class Kink:
    """Where the function, or (`power` 1 to 3) its derivative of that order, jumps; `gain`: the misfit it explains."""

    location: float
    power: int
    gain: float


_PLACES = points(257)[1:-1]  # where kinks are looked for at first


def _truncated_powers(u: np.ndarray, root: np.ndarray, places: np.ndarray, power: int) -> np.ndarray:
    """Truncated powers ``(u - t)_+^power``, one a place, scaled by the roots of the weights."""
    beyond = u[:, None] - places
    return np.where(beyond > 0, beyond**power, 0) * root[:, None]


def _strongest(u: np.ndarray, root: np.ndarray, smooth: np.ndarray, rest: np.ndarray, powers: tuple) -> Kink:
    """The place and power that explain most of the `rest`: a scan, then closer and closer around its best place."""

    def gains(places, power):
        column = _truncated_powers(u, root, places, power)
        free = column - smooth @ (smooth.T @ column)
        norm = np.sum(free**2, axis=0)
        usable = norm > 1e-20 * np.sum(column**2, axis=0)
        return np.where(usable, np.sum((free.T @ rest) ** 2, axis=1) / np.where(usable, norm, 1), 0)

    kinks = []
    for power in powers:
        places, found = _PLACES, Kink(0.0, power, 0.0)
        for _ in range(4):
            gain = gains(places, power)
            best = int(np.argmax(gain))
            found = Kink(float(places[best]), power, float(gain[best]))
            places = np.linspace(places[max(best - 1, 0)], places[min(best + 1, len(places) - 1)], 33)
        kinks.append(found)
    return max(kinks, key=lambda kink: kink.gain)


def find_kinks(
    u: Float[np.ndarray, " n"],
    values: Float[np.ndarray, "n d"],
    degrees: int = _SMOOTH,
    weights: Float[np.ndarray, " n"] | None = None,
    least: float = 0.0,
    powers: tuple[int, ...] = POWERS,
    most: int = 2,
) -> tuple[Kink, ...]:
    """Kinks of a function given by values on ``[-1, 1]``, strongest first.

    A kink is a truncated power $(u - t)_+^m$ that explains more of what `degrees` polynomials leave of the values than
    at any other place. One that explains less than `least`, or a tenth of the first, is left out.
    """
    root = np.sqrt(np.ones(len(u)) if weights is None else weights)
    smooth = np.linalg.qr(np.polynomial.chebyshev.chebvander(u, degrees - 1) * root[:, None])[0]
    kinks: list[Kink] = []
    for _ in range(most):
        rest = values * root[:, None]
        kink = _strongest(u, root, smooth, rest - smooth @ (smooth.T @ rest), powers)
        if kink.gain <= least or (kinks and kink.gain < 0.1 * kinks[0].gain):
            break
        kinks.append(kink)
        smooth = np.linalg.qr(np.hstack([smooth, _truncated_powers(u, root, np.array([kink.location]), kink.power)]))[0]
    return tuple(kinks)


def find_noisy_kinks(
    u: Float[np.ndarray, " n"], values: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"], degrees: int
) -> tuple[Kink, ...]:
    """Kinks that noisy values show: a truncated power that does, in one stroke, the work of many polynomials.

    It counts where fewer than half as many polynomials are wanted with it as without it, of up to `degrees`, and
    the fit is no worse. `values` have noise of variance 1 in every component at weight 1; a function is wanted while
    its coefficient is about twice its error.
    """
    groups = np.array_split(np.argsort(u), min(_BINS, len(u)))
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
