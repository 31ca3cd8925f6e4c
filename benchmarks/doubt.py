"""Where answers looked surer than they were, or less sure: coverage of families that were once wrong or withheld.

- penalised: weights under smooth penalties ``exp(x)`` or ``softplus(x)``, 1 to 8 of them: nothing is a kink.
- kinked: penalties ``|x|`` that hold ``x``, or do not.
- newsvendors: a wholesale price against orders at a smoothed quantile: samples curve rarely and much.
- binding: bounds and simplexes that bind at some contexts, of one and two dimensions.
- repeated: the same samples weighted, and with rows repeated.

Truths are closed forms or by quadrature. ``python benchmarks/doubt.py newsvendors --runs 200 --seed 1000``.
"""

import os
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb

NODES, WEIGHTS = np.polynomial.legendre.leggauss(400)
UNIT, UNIT_WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2  # on [0, 1]


@dataclass
class Trial:
    """A problem with its samples and its minimiser; `policy`: ``y*`` as a function of ``x`` and contexts; `binds`: the
    share of contexts at which each inequality binds, at an ``x``; `group`: trials that are counted together."""

    label: str
    problem: Any
    samples: Any
    truth: np.ndarray
    group: tuple = ()
    policy: Any = None
    binds: Any = None
    fresh: Any = None
    again: Any = None


def least(total, low: float, high: float) -> np.ndarray:
    """The minimiser of a function of one number, by brute force."""
    grid = np.linspace(low, high, 161)
    best = int(np.argmin([total(x) for x in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, 160)]
    return np.array([optimize.minimize_scalar(total, bounds=ends, method="bounded", options={"xatol": 1e-9}).x])


def penalised(seed: int) -> Trial:
    rng = np.random.default_rng([seed, 1])
    k, n, soft, regression = (rng.choice(part) for part in ((1, 1, 2, 4, 8), (800, 2000, 4000), (0, 1), (0, 1)))
    share, (above, below) = rng.uniform(0.25, 0.5, k), rng.choice([0.1, 0.3, 0.5, 1.0, 2.0], 2)
    penalty, back = (jax.nn.softplus, lambda p: np.log(np.expm1(p))) if soft else (jnp.exp, np.log)
    turns, phase = rng.uniform(0.5, 3, k), rng.uniform(0, 3, k)
    weights = lambda t: 1 + 0.5 * np.sin(np.multiply.outer(t, turns) + phase)
    t, ridge = rng.uniform(-1, 1, n), lambda x, y: jnp.sum(penalty(x) * y**2) / 2
    if regression:
        rows = lambda size, wanted: (z := rng.normal(size=(n, k)), np.sum(z * wanted, 1) + size * rng.normal(size=n))
        loss = lambda y, part: (part[0] @ y - part[1]) ** 2 / 2
    else:
        rows = lambda size, wanted: wanted + size * rng.normal(size=(n, k))
        loss = lambda y, part: jnp.sum((y - part) ** 2) / 2
    eta = {"above": rows(above, share * weights(t)), "below": rows(below, weights(t))}
    problem = cb.Problem(
        lambda x, y, xi, eta: loss(y, eta["above"]), lambda x, y, xi, eta: loss(y, eta["below"]) + ridge(x, y),
        x0=np.full(k, rng.choice([-1.0, 0.0])), y0=np.zeros(k), domain=cb.Interval(-1.0, 1.0),
    )  # fmt: skip
    what = f"{'softplus' if soft else 'exp'}, {k} {'regressors' if regression else 'means'}, n {n}"
    return Trial(f"{what}, noise {above} and {below}", problem, cb.Samples(t, eta), back(1 / share - 1))


def kinked(seed: int) -> Trial:
    rng = np.random.default_rng([seed, 2])
    k, n, noise = int(rng.choice([1, 1, 2, 3])), int(rng.choice([500, 2000])), float(rng.choice([0.3, 1.0]))
    weight, held = float(rng.uniform(0.3, 1.0)), rng.uniform(size=k) < 0.7
    beyond = rng.choice([-1, 1], k) * (weight + rng.uniform(0.2, 1, k))
    pull = np.where(held, rng.uniform(-0.6, 0.6, k) * weight, beyond)
    square = 7 / 3  # the mean of (1 + xi)^2
    t, draw = rng.uniform(size=n), lambda: noise * rng.normal(size=(n, k))
    eta = {"up": np.multiply.outer(1 + t, pull / square) + draw(), "low": draw()}
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - eta["up"]) ** 2) / 2 + weight * jnp.sum(jnp.abs(x)),
        lambda x, y, xi, eta: jnp.sum((y - x * (1 + xi) - eta["low"]) ** 2) / 2,
        x0=np.full(k, 0.5), y0=np.zeros(k), domain=cb.Interval(0.0, 1.0),
    )  # fmt: skip
    truth = np.sign(pull) * np.maximum(np.abs(pull) - weight, 0) / square
    return Trial(f"{held.sum()} of {k} held, n {n}, noise {noise}", problem, cb.Samples(t, eta), truth)


def newsvendors(seed: int) -> Trial:
    rng, price = np.random.default_rng([seed, 3]), 10.0
    width, n = float(rng.choice([0.05, 0.1, 0.2, 0.4])), int(rng.choice([2000, 5000, 20000]))
    mean, swing, ratio, shift = rng.uniform(3, 5), rng.uniform(0, 1), rng.uniform(0.35, 0.65), rng.uniform(0, 0.6)
    reach = lambda t: mean + swing * np.cos(2 * np.pi * t)
    low = lambda t: ratio * mean + shift * np.sin(2 * np.pi * t)

    def policy(x, t):
        below, above = low(t) - 5, low(t) + reach(t) + 5
        for _ in range(60):
            y = (below + above) / 2
            ends = np.logaddexp(0, np.stack([y - low(t), y - low(t) - reach(t)]) / width)
            less = x - price + price * width * (ends[0] - ends[1]) / reach(t) < 0
            below, above = np.where(less, y, below), np.where(less, above, y)
        return (below + above) / 2

    problem = cb.Problem(
        lambda x, y, xi, eta: -(x - 1) * y,
        lambda x, y, xi, eta: x * y - price * y + price * width * jax.nn.softplus((y - eta) / width),
        x0=price / 2, y0=4.0, domain=cb.Interval(0.0, 1.0),
    )  # fmt: skip
    t = rng.uniform(size=n)
    samples = cb.Samples(t, low(t) + reach(t) * rng.uniform(size=n))
    truth = least(lambda x: -(x - 1) * (UNIT_WEIGHTS @ policy(x, UNIT)), 2.0, 9.9)
    return Trial(f"width {width}, n {n}", problem, samples, truth, (width, n))


def on_simplex(z: np.ndarray) -> np.ndarray:
    """The nearest points of the simplex, row by row."""
    falling = -np.sort(-z, axis=1)
    shift = (np.cumsum(falling, axis=1) - 1) / np.arange(1, z.shape[1] + 1)
    return np.maximum(z - np.take_along_axis(shift, np.sum(falling > shift, axis=1)[:, None] - 1, axis=1), 0)


def binding(seed: int) -> Trial:
    rng = np.random.default_rng([seed, 4])
    d, n, noise = int(rng.integers(1, 3)), int(rng.choice([1000, 2000, 4000])), float(rng.choice([0.1, 0.3, 1.0]))
    kind, shift, slope = int(rng.integers(3)), rng.uniform(-0.5, 0.5), rng.uniform(0.5, 2, d) * rng.choice([-1, 1], d)
    domain = cb.Interval(0.0, 1.0) if d == 1 else cb.Box(np.zeros(2), np.ones(2))
    line = (lambda xi: slope[0] * (xi - 0.5)) if d == 1 else (lambda xi: (xi - 0.5) @ jnp.asarray(slope))
    middle = (np.arange(200) + 0.5) / 200
    places = UNIT if d == 1 else np.stack(np.meshgrid(middle, middle), -1).reshape(-1, 2)
    mass = UNIT_WEIGHTS if d == 1 else np.full(len(places), 1 / len(places))
    if kind == 2:
        wanted = lambda x, xi: jnp.stack([x * line(xi) + 0.5, 0.4 - shift * line(xi), 0.2 + 0 * line(xi)], -1)
        policy = lambda x, xi: on_simplex(np.asarray(wanted(x, xi)))
        goal = lambda xi: jnp.stack([0.4 + 0.9 * line(xi), 0.4 - 0.6 * line(xi), 0.2 - 0.3 * line(xi)], -1)
        limits, y0, ends = cb.Simplex(), np.full(3, 1 / 3), [(j, 0.0) for j in range(3)]
    else:
        low, high = ((-0.2, 5.0), (-0.3, 0.5))[kind]
        wanted = lambda x, xi: (x + line(xi) + shift)[..., None]
        policy = lambda x, xi: np.clip(np.asarray(wanted(x, xi)), low, high)
        goal = lambda xi: (0.4 + 0.3 * line(xi))[..., None]
        limits, y0, ends = cb.Bounds(low, high), np.full(1, 0.1), [(0, low), (0, high)]
    draw, contexts = lambda: noise * rng.normal(size=(n, len(y0))), lambda n: rng.uniform(size=(n,) + (d,) * (d > 1))
    samples = cb.Samples(contexts(n), {"up": draw(), "low": draw()})
    problem = cb.Problem(
        lambda x, y, xi, eta: jnp.sum((y - goal(xi) - eta["up"]) ** 2) / 2 + 0.05 * x**2,
        lambda x, y, xi, eta: jnp.sum((y - wanted(x, xi) - eta["low"]) ** 2) / 2,
        x0=0.5, y0=y0, domain=domain, constraints=[limits],
    )  # fmt: skip
    target = np.asarray(goal(places))
    truth = least(lambda x: mass @ np.sum((policy(x, places) - target) ** 2, axis=1) / 2 + 0.05 * x**2, -4, 4)
    binds = lambda x: [float(mass @ (np.abs(policy(x, places)[:, j] - end) < 1e-9)) for j, end in ends]
    label = f"{limits!r}, {d} dimensions, n {n}, noise {noise}"
    return Trial(label, problem, samples, truth, (d, kind, noise), policy, binds, contexts(400))


def repeated(seed: int) -> Trial:
    rng, n = np.random.default_rng([seed, 5]), 1200
    t, eta = rng.uniform(size=n), {"up": rng.normal(size=n), "low": 0.5 * rng.normal(size=n)}
    often = rng.integers(1, 4, n)
    order = rng.permutation(np.repeat(np.arange(n), often))
    goal, policy = lambda t: jnp.sin(3 * t), lambda x, t: x[0] * jnp.sin(2 * t) + x[1] * t
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - goal(xi) - eta["up"]) ** 2 / 2 + 0.1 * jnp.sum(x**2),
        lambda x, y, xi, eta: (y - policy(x, xi) - eta["low"]) ** 2 / 2,
        x0=np.zeros(2), y0=0.0, domain=cb.Interval(0.0, 1.0),
    )  # fmt: skip
    each = np.stack([np.sin(2 * UNIT), UNIT], axis=1)
    matrix = (each * UNIT_WEIGHTS[:, None]).T @ each + 0.2 * np.eye(2)
    truth = np.linalg.solve(matrix, each.T @ (UNIT_WEIGHTS * np.sin(3 * UNIT)))
    again = cb.Samples(t[order], {name: part[order] for name, part in eta.items()})
    weighted = cb.Samples(t, eta, weights=often.astype(float))
    return Trial("each row one to three times", problem, again, truth, again=weighted)


FAMILIES = {each.__name__: each for each in (penalised, kinked, newsvendors, binding, repeated)}


def tried(family: str, seed: int) -> dict[str, Any]:
    """What a run came to, as plain numbers."""
    warnings.simplefilter("ignore")
    trial, began = FAMILIES[family](seed), time.perf_counter()
    found = cb.solve(trial.problem, trial.samples)
    said = found.uncertainty
    result = {
        "seed": seed, "label": trial.label, "group": trial.group, "converged": bool(found.converged),
        "x": np.ravel(found.x), "truth": trial.truth, "error": said.error, "interval": said.interval,
        "notes": said.notes, "seconds": time.perf_counter() - began,
    }  # fmt: skip
    if trial.binds is not None:
        x, exact = float(found.x), None
        shares = [row.active for row in found.feasibility.rows]
        result["active"] = max(abs(a - b) for a, b in zip(shares, trial.binds(x), strict=True))
        if found.form is None or found.form.null is None:
            exact = np.asarray(trial.policy(x, trial.fresh)).reshape(len(trial.fresh), -1)
            off = np.abs(np.asarray(found.policy(trial.fresh)).reshape(exact.shape) - exact)
            error = np.asarray(found.policy_standard_error(trial.fresh)).reshape(off.shape)
            result["band"] = np.mean(off <= 1.96 * error)
    if trial.again is not None:
        other = cb.solve(trial.problem, trial.again)
        result["apart"] = float(np.abs(np.ravel(other.x) - result["x"]).max())
        result["errors apart"] = float(np.abs(other.uncertainty.error / said.error - 1).max())
        result["said"] = found.choices.get("samples", "")
    return result


def report(family: str, runs: list[dict[str, Any]]) -> None:
    """Coverage and what else a family is about, in words."""
    known = [np.isfinite(run["error"]) for run in runs]
    within = lambda low, high, truth: (low - 1e-7 <= truth) & (truth <= high + 1e-7)
    held = [within(*run["interval"], run["truth"]) for run in runs]
    hits, count = sum(int(np.sum(h[k])) for h, k in zip(held, known, strict=True)), sum(int(k.sum()) for k in known)
    total = sum(len(k) for k in known)
    seconds = [run["seconds"] for run in runs]
    print(f"{family}: {len(runs)} runs, {sum(run['converged'] for run in runs)} converged, ", end="")
    print(f"{np.median(seconds):.1f} seconds, at most {max(seconds):.1f}")
    print(f"  {hits} of {count} intervals hold the truth ({hits / max(count, 1):.1%}), {total - count} withheld")
    some = [k & (run["error"] > 0) for run, k in zip(runs, known, strict=True)]
    off = [(run["x"] - run["truth"])[at] / run["error"][at] for run, at in zip(runs, some, strict=True)]
    off = np.concatenate(off)
    print(f"  off by {off.mean():+.2f} +- {off.std():.2f} standard errors (0 and 1)")
    print(f"  at a kink: {sum(note == 'at a kink' for run in runs for note in run['notes'])} coordinates")
    if family == "kinked":
        at = [(run["truth"] == 0, np.array([note == "at a kink" for note in run["notes"]])) for run in runs]
        print(f"  of {sum(int(t.sum()) for t, _ in at)} truly held, {sum(int((t & k).sum()) for t, k in at)} are seen")
    if family == "newsvendors":
        for group in sorted({run["group"] for run in runs}):
            some = [run for run in runs if run["group"] == group and np.isfinite(run["error"][0])]
            scatter = np.sqrt(np.mean([(run["x"][0] - run["truth"][0]) ** 2 for run in some]))
            print(f"  width {group[0]}, n {group[1]}: {len(some)} runs, x scatters by {scatter:.3f}, standard errors "
                  f"{np.sqrt(np.mean([run['error'][0] ** 2 for run in some])):.3f}")  # fmt: skip
    if family == "binding":
        bands = [run["band"] for run in runs if "band" in run]
        active = np.array([run["active"] for run in runs])
        print(
            f"  bands of the policy hold {np.mean(bands):.1%}; shares of contexts at which constraints bind: ", end=""
        )
        print(f"{np.mean(active <= 0.1):.1%} within .1, at most {active.max():.2f} off")
    if family == "repeated":
        print(f"  x at most {max(run['apart'] for run in runs):.1e} from that of weights, standard errors "
              f"{max(run['errors apart'] for run in runs):.1e} of themselves; said: {runs[0]['said']}")  # fmt: skip
    for note, often in Counter(note.split(":")[0][:60] for run in runs for note in run["notes"] if note).most_common(6):
        print(f"  {often} times: {note}")
    missed = [run["seed"] for run, h, k in zip(runs, held, known, strict=True) if np.any(k & ~h)]
    print(f"  missed: {missed[:40]}", flush=True)


def main() -> int:
    parser = harness.parser(__doc__, ("--runs", 100), ("--seed", 0, "of the first run"),
                            ("--cores", os.cpu_count() or 1))  # fmt: skip
    parser.add_argument("families", nargs="*", choices=[[], *FAMILIES])
    arguments = parser.parse_args()
    with ProcessPoolExecutor(arguments.cores, mp_context=get_context("spawn")) as pool:
        for family in arguments.families or FAMILIES:
            seeds = range(arguments.seed, arguments.seed + arguments.runs)
            report(family, list(pool.map(tried, [family] * len(seeds), seeds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
