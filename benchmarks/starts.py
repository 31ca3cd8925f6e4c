"""Does ``Newton`` find the minimum wherever it starts, in whatever units? Ten kinds of problem, thirty starts each.

Starts are at the optimum of one coordinate or next to it (the others off), at stationary points of ``f`` alone, at
bounds, where ``f`` or its gradient vanishes, at 1e-300 and at 1e12; coordinates of ``x`` are measured in units from
1e-9 to 1e9. An answer is right where the objective, in double precision, is no higher than the best that any start has
found, by 1e-9 of its spread over the samples; for problems with several minima, where no point within a hundredth of
its size is lower. Prints a line for each kind: answers that are right, that say themselves that they are not, and
those that are converged and wrong; those that stalled, those that are converged though their table says that the run
ended early, and the most steps of those that are right.

Run: python benchmarks/starts.py [--only newsvendor] [--verbose]
"""

import zlib

import jax

import harness

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import cobilevel as cb
from cobilevel.derivatives import Expansions, flattened
from cobilevel.lower import solve_at

ROWS, BASIS, LINE = 300, cb.Chebyshev(3), cb.Interval(0.0, 1.0)
RNG = np.random.default_rng(0)
XI = RNG.uniform(0, 1, ROWS)
NOISE = RNG.normal(size=ROWS)
RIGHT = 1e-9  # of the spread
WIDTHS = (6, 6, 8, 6, 8, 6, 6)


class Scaled:
    """An objective of ``x`` in other units, which are numbers of the program."""

    def __init__(self, function, unit):
        self.function, self.unit = function, jnp.asarray(unit)

    def __call__(self, x, y, xi, eta):
        return self.function(x / self.unit, y, xi, eta)


def line(x, y, xi, eta):
    return (y - x[0] * xi - 0.3 * eta) ** 2


def pair(x, y, xi, eta):
    return (y - x[0] * xi - x[1] - 0.3 * eta) ** 2


def follow(x, y, xi, eta):
    return (y - x[1] - 0.1 * eta) ** 2


def ridge(x, y, xi, eta):
    return (y - (1 + xi + eta)) ** 2 + jnp.exp(x[0]) * y**2 + jnp.exp(x[1]) * (y - 1) ** 2


def congested(x, y, xi, eta):
    return 0.25 * y**4 + y**2 * (1 + x[0] ** 2) - y * (x[1] + xi + 0.3 * eta)


KINDS = {  # f, g, where a coordinate or f alone is at its best or vanishes, bounds, and whether there is one minimum
    "a line": (
        lambda x, y, xi, e: (y - 1 - xi) ** 2 + 0.1 * x[0] ** 2 + (x[1] - 0.3) ** 2,
        line, [(0.5, 0.3), (0.0, 0.3), (1.9432, -1.0), (0.5, 0.3 + 1e-9)], None, True,
    ),
    "a plane": (
        lambda x, y, xi, e: (y - 1 - xi**2 - 0.1 * e) ** 2 + 0.01 * x[0] ** 2 + 0.01 * x[1] ** 2,
        pair, [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0)], None, True,
    ),
    "at bounds": (
        lambda x, y, xi, e: (y - 1 - xi) ** 2 + 0.1 * x[0] ** 2 + (x[1] - 0.3) ** 2,
        line, [(0.5, 0.3), (0.0, 0.2), (0.7, 0.0), (0.0, 0.0)], ((0.0, 0.0), (0.7, 0.2)), True,
    ),
    "two wells": (
        lambda x, y, xi, e: (x[0] - 1) ** 2 + (y**2 - 1) ** 2,
        follow, [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (1.0, 1e-9)], None, False,
    ),
    "revenue": (
        lambda x, y, xi, e: -x[0] * y + x[1] ** 2,
        lambda x, y, xi, e: (y - (11 + xi + e - x[0])) ** 2, [(0.0, 0.0), (6.0, 0.0), (0.0, 1.0)], None, True,
    ),
    "newsvendor": (
        lambda x, y, xi, e: 0.5 * y - x[0] * jnp.minimum(8 + e - 0.8 * x[0], y) + 0.3 * x[0] ** 2 + (x[1] - 1) ** 2,
        lambda x, y, xi, e: (y - (8 + xi + e - 0.8 * x[0])) ** 2, [(1.0, 1.0), (0.0, 1.0), (3.0, 0.0)], None, True,
    ),
    "penalties": (
        lambda x, y, xi, e: (y - 1 - xi) ** 2 + 0.001 * x[0] ** 2 + 0.001 * (x[1] + 1) ** 2,
        ridge, [(0.0, 0.0), (0.0, -1.0), (3.0, -1.0)], None, False,
    ),
    "flows": (
        lambda x, y, xi, e: (y - 0.3 * xi) ** 2 + 0.01 * (x[0] - 1) ** 2 + 0.01 * x[1] ** 2,
        congested, [(1.0, 0.0), (0.0, 0.0), (1.0, 1.0)], None, False,
    ),
    "a valley": (
        lambda x, y, xi, e: (y - 1) ** 2 + 0.1 * jnp.sqrt(1 + (x[0] - 2) ** 2) + 0.01 * jnp.cosh(x[1] / 10),
        line, [(2.0, 0.0), (0.0, 0.0), (2.0, 3.0)], None, True,
    ),
    "a kink": (
        lambda x, y, xi, e: jnp.abs(y - 1 - xi) + (x[1] - 0.3) ** 2,
        pair, [(0.5, 0.3), (1.0, 0.3), (0.0, 0.0)], None, True,
    ),
}  # fmt: skip
UNITS = ((1.0, 1.0), (1e-9, 1e9), (1e9, 1e-9), (1e6, 1.0))
FAR = ((1e-300, 1e-300), (1e12, 1.0), (-1e12, 1e12), (1.0, 1e-300), (0.3, -2.0), (2.0, 1.0), (-1.0, 0.1))


def starts_of(name):
    """Thirty pairs of a start and units: those of the kind in all units, then those of all kinds."""
    own, bounds = KINDS[name][2], KINDS[name][3]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    given = [(start, unit) for unit in UNITS for start in own]
    given += [(start, UNITS[k % len(UNITS)]) for k, start in enumerate(FAR)]
    while len(given) < 30:
        beside = np.array(own[rng.integers(len(own))]) + np.array([rng.normal(), 0.0])[rng.permutation(2)]
        given.append((tuple(beside), tuple(10.0 ** rng.integers(-9, 10, 2))))
    fit = lambda start: start if bounds is None else tuple(np.clip(start, *bounds))
    return [(fit(start), unit) for start, unit in given[:30]]


def solved(name, start, unit):
    upper, lower, _, bounds, _ = KINDS[name]
    own = np.asarray(unit)
    bounds = None if bounds is None else tuple(np.asarray(end) * own for end in bounds)
    made = cb.Problem(Scaled(upper, own), Scaled(lower, own), np.asarray(start) * own, 0.0, LINE, x_bounds=bounds)
    return cb.solve(made, cb.Samples(XI, NOISE), basis=BASIS)


def judge(name):
    """The objective at a decision in units of 1, and its spread over the samples."""
    upper, lower, _, bounds, _ = KINDS[name]
    ends = None if bounds is None else tuple(map(np.asarray, bounds))
    problem = cb.Problem(upper, lower, np.full(2, 0.1), 0.0, LINE, x_bounds=ends)
    reduced = cb.reduce(problem, BASIS, cb.Samples(XI, NOISE)).whitened()
    at = Expansions(reduced.ordinary())

    def objective(x):
        point = solve_at(at, np.clip(x, *at.bounds), at.table(reduced.W0), 0.0)
        return point.value, at.row_scales(point.x, point.W, centre=point.value).spread

    return objective


def lower_nearby(objective, x, value, spread):
    """Whether a decision a hundredth of its size away, or less, is lower."""
    rng, size = np.random.default_rng(1), np.maximum(np.abs(x), 1e-2)
    moves = [length * size * rng.normal(size=2) for length in (1e-2, 1e-3, 1e-4) for _ in range(8)]
    return any(objective(x + move)[0] < value - RIGHT * spread for move in moves)


def main():
    arguments = harness.arguments(__doc__, ("--only", ""), ("--verbose", False, "a line for each that is not right"))
    head = ("starts", "right", "said so", "wrong", "stalled", "early", "steps")
    print(f"{'kind':12s} " + " ".join(f"{word:>{width}s}" for word, width in zip(head, WIDTHS, strict=True)))
    totals = np.zeros(5, int)
    for name in KINDS:
        if arguments.only and name not in arguments.only.split(","):
            continue
        objective, found = judge(name), []
        for start, unit in starts_of(name):
            solution = solved(name, start, unit)
            x = flattened(solution.x) / np.asarray(unit)
            found.append((start, unit, solution, x, *objective(x)))
        best = min(value for *_, value, _ in found if np.isfinite(value))
        counts, most = np.zeros(5, int), 0
        for start, unit, solution, x, value, spread in found:
            high = value > best + RIGHT * spread
            good = not (lower_nearby(objective, x, value, spread) if not KINDS[name][4] else high)
            kind = 0 if solution.converged and good else 2 if solution.converged else 1
            counts[kind] += 1
            counts[3] += solution.result is cb.Result.STALLED
            counts[4] += solution.converged and "ended" in solution.uncertainty.table()
            most = max(most, solution.stats["steps"] if kind == 0 else 0)
            if kind and arguments.verbose:
                print(f"    from {start} in {unit}: {solution.result.name} at {x}, {value - best:.2g} above, "
                      f"{solution.stats['steps']} steps")  # fmt: skip
        totals += counts
        print(f"{name:12s} {len(found):6d} {in_line(counts)} {most:6d}", flush=True)
    print(f"{'all':12s} {totals[:3].sum():6d} {in_line(totals)}")


def in_line(counts):
    return " ".join(f"{count:{width}d}" for count, width in zip(counts, WIDTHS[1:-1], strict=True))


if __name__ == "__main__":
    main()
