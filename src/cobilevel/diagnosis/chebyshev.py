"""Chebyshev points, the coefficients of the polynomial through values there, and where these turn into rounding."""

import numpy as np
from jaxtyping import Float


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


def envelope_of(sizes: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The largest coefficient from each degree on: even and odd functions have every second one at zero."""
    return np.maximum.accumulate(sizes[::-1])[::-1]


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


def rms(u: Float[np.ndarray, " n"], values: Float[np.ndarray, "n d"]) -> float:
    """The root mean square over the interval of what is given at Chebyshev points, which crowd at the ends."""
    weight = np.sqrt(np.maximum(1 - u**2, 0))
    return float(np.sqrt(np.sum(weight @ values**2) / np.sum(weight)))
