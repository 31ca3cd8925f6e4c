"""Policies that jump in the context, as between peak and off-peak hours: does the interval of ``x`` hold the truth?

Each run draws a day of 24 hours with one to three jumps at random places, a smooth part, and a lower level that follows
both through noise; every other one is nonlinear in ``x``. With ``--stated`` the domain has the breaks, else nothing is
said of them. With ``--smooth`` nothing jumps: policies are smooth, steep (``tanh``), kinked or clipped, with noise and
without, and what counts is how often a break is seen.

Counted are the runs whose 95% interval, as printed, holds the truth; those that give none or express a doubt; and how
standard errors compare with the scatter. The truth is by quadrature on each piece.
"""

import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb
from cobilevel.basis import breaks_in

NODES, WEIGHTS = np.polynomial.legendre.leggauss(60)
STEEP = 20.0  # of tanh on [-1, 1]


class Case(NamedTuple):
    """One run: a problem with its samples, the truth of ``x``, and where the policy jumps."""

    problem: cb.Problem
    samples: cb.Samples
    truth: float
    label: str
    breaks: tuple[float, ...]


def pieces_of(breaks) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on each piece, four panels each."""
    ends = np.concatenate([[0.0], breaks, [24.0]])
    panels = np.concatenate([np.linspace(a, b, 5)[:-1] for a, b in pairwise(ends)] + [[24.0]])
    half = np.diff(panels)[:, None] / 2
    return (panels[:-1, None] + half * (1 + NODES)).ravel(), (half * WEIGHTS / 24).ravel()


def made(policy: Callable, target: Callable, nodes, start: float, noise: float, rng, n: int, domain, label, breaks):
    """A lower level that follows a policy through noise, an upper one that compares it with a target."""
    price = 0.05
    upper = lambda x, y, t, eta: (y - target(t)) ** 2 / 2 + price * x**2
    lower = lambda x, y, t, eta: (y - policy(x, t) - eta) ** 2 / 2
    where, weights = nodes
    total = jax.jit(lambda x: weights @ (policy(x, where) - target(where)) ** 2 / 2 + price * x**2)
    grid = np.linspace(-4, 4, 81)
    first = grid[int(np.argmin([float(total(x)) for x in grid]))]
    truth = optimize.minimize_scalar(lambda x: float(total(x)), bracket=(first - 0.1, first, first + 0.1), tol=1e-12).x
    samples = cb.Samples(rng.uniform(0, 24, n), noise * rng.normal(size=n))
    return Case(cb.Problem(upper, lower, x0=start, y0=0.0, domain=domain), samples, float(truth), label, breaks)


def jumping(seed: int, n: int, stated: bool) -> Case:
    """One to three jumps of the policy, at least two hours apart; peak and off-peak by turns."""
    rng = np.random.default_rng(seed)
    count = 1 + seed % 3
    while True:
        breaks = np.sort(np.round(rng.uniform(2, 22, count), 2))
        if np.all(np.diff(breaks) >= 2):
            break
    peak = np.arange(count + 1) % 2 == rng.integers(2)
    size, rest = float(rng.choice([0.3, 0.6, 1.0])), rng.uniform(0.5, 1.0)
    level = rest + size * np.where(peak, rng.uniform(0.5, 1.5), 0.0)
    own = size * np.where(peak, rng.uniform(0.5, 1.5), 0.0)
    a, b, c = rng.uniform(-0.5, 0.5, 3)
    noise = float(rng.choice([0.1, 0.3, 1.0]))
    of = lambda table, t: jnp.asarray(table)[jnp.searchsorted(jnp.asarray(breaks), t, side="right")]
    wave = lambda t: a * jnp.sin(t / 4) + b * jnp.cos(t / 3)
    follow = (lambda x: x) if seed % 2 else (lambda x: x + 0.3 * jnp.sin(x))
    policy = lambda x, t: follow(x) * of(level, t) * (1 + 0.2 * jnp.sin(t / 5)) + of(own, t) + wave(t)
    target = lambda t: 3 + c * jnp.cos(t / 4)
    domain = cb.Interval(0, 24, breaks=tuple(breaks)) if stated else cb.Interval(0, 24)
    label = (
        f"jumps at {', '.join(map(str, breaks))}, size {size}, noise {noise}{'' if seed % 2 else ', nonlinear in x'}"
    )
    return made(policy, target, pieces_of(breaks), 0.5, noise, rng, n, domain, label, tuple(breaks))


SMOOTH: dict[str, Callable] = {
    "waves": lambda t: jnp.sin(t / 2) + 0.5 * jnp.cos(t / 3),
    "steep": lambda t: jnp.tanh(STEEP * (t / 12 - 0.9)),
    "kink": lambda t: 3 * jnp.abs(t / 12 - 1.4),
    "corner": lambda t: 2 * jnp.maximum(0, jnp.sin(t / 4)),
    "clipped": lambda t: jnp.clip(t / 3 - 4, -1, 1),
    "bump": lambda t: jnp.exp(-(((t - 9) / 1.5) ** 2)),
    "line": lambda t: t / 12,
}


def smooth(seed: int, n: int, stated: bool) -> Case:
    """Nothing jumps, though some look as if."""
    rng = np.random.default_rng(seed)
    name = list(SMOOTH)[seed % len(SMOOTH)]
    noise, shift = float(rng.choice([0.0, 0.01, 0.1, 0.3, 1.0])), float(rng.uniform(-2, 2))
    shape = lambda t: SMOOTH[name](t + shift)
    policy = lambda x, t: x * (1 + shape(t) / 2) + shape(t)
    target = lambda t: 1 + jnp.cos(t / 4)
    nodes = pieces_of(np.arange(0.5, 24, 0.5))
    return made(policy, target, nodes, 0.5, noise, rng, n, cb.Interval(0, 24), f"{name}, noise {noise}", ())


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--runs", 30),
        ("--n", 1500, "samples of each run"),
        ("--seed", 0, "of the first run"),
        ("--stated", False, "the domain has the breaks"),
        ("--smooth", False, "nothing jumps"),
        ("--loud", False, "say what each run came to"),
    )
    warnings.simplefilter("ignore")
    held, doubted, off, ratios, seconds, seen, wrong = 0, 0, [], [], [], 0, []
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        case = (smooth if arguments.smooth else jumping)(seed, arguments.n, arguments.stated)
        began = time.perf_counter()
        found = cb.solve(case.problem, case.samples)
        said = found.uncertainty
        seconds.append(time.perf_counter() - began)
        (low,), (high,) = said.interval
        error, x = float(said.error[0]), float(said.x[0] - np.nan_to_num(said.bias[0]))
        doubt = bool(said.why_not or said.undetermined or any(said.notes)) or not np.isfinite(error)
        doubt |= not found.converged or any("jumps" in words for words in said.remarks)
        holds = low - 1e-7 <= case.truth <= high + 1e-7
        places = sorted(breaks_in(found.basis.basis))
        seen += bool(places) or any("jumps" in words for words in said.remarks)
        doubted, held = doubted + doubt, held + (holds and not doubt)
        if not doubt and error > 0:
            off.append((x - case.truth) / error)
            ratios.append(error)
        if not (holds or doubt):
            wrong.append(seed)
        if arguments.loud or not (holds or doubt):
            verdict = "in doubt" if doubt else "holds" if holds else "MISSED"
            by = f"{(x - case.truth) / error:+.1f} se" if error > 0 else ""
            print(
                f"  {seed} {verdict}: {case.label}; breaks {places or 'none'}, {found.basis.size} functions, truth "
                f"{case.truth:.4f}, x {x:.4f} +- {error:.2g} {by} {' '.join(filter(None, said.notes))}",
                flush=True,
            )
    sure = arguments.runs - doubted
    print(f"{arguments.runs} runs of {arguments.n} samples: {sure} confident, {held} of them hold the truth", end="")
    print(f" ({held / max(sure, 1):.1%}); {doubted} in doubt or without an interval; a break in {seen}")
    if off:
        print(f"off by {np.mean(off):+.2f} +- {np.std(off):.2f} standard errors (0 and 1); ", end="")
        print(f"{sum(one > 0 for one in off)} of {len(off)} too high; median standard error {np.median(ratios):.2g}")
    print(f"{np.median(seconds):.2f} seconds, at most {max(seconds):.1f}; missed: {wrong}")


if __name__ == "__main__":
    main()
