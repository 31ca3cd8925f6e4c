"""Does a search that begins on few rows end where one on all rows from the start does, and what does it save?

Random problems (those of ``answers.py``, with 20,000 rows and a given basis) are solved twice: with stages, which is
forced where rows are too few for them to pay, and without. Half have noise in the lower level, a quarter has
constraints. Printed of each: the largest difference of ``x`` in standard errors, steps on few and on all rows, passes
over all rows, and seconds (of a second call). Two local minima are told apart by their objectives.
"""

import dataclasses
import warnings
from pathlib import Path

import jax

import harness

jax.config.update("jax_enable_x64", True)

import numpy as np

import answers
import cobilevel as cb
from cobilevel.derivatives import fewer

ROWS = 20_000
GOAL = 1e-6  # standard errors
MINIMUM = 1e-9  # of the objective's size: minima further apart are two


def drawn(seed):
    """A problem of a seed: noise in every other one, constraints in every fourth."""
    rng = np.random.default_rng(seed)
    plan = answers.planned(rng, seed)
    rule = answers.RULES[seed // 4 % 4] if seed % 4 == 3 else ""
    special = plan.special if plan.special in ("kink", "levels") else ""
    plan = dataclasses.replace(
        plan,
        special=special,
        rule=rule,
        noisy=seed % 2 == 0,
        rows=ROWS,
        given=True,
        dx=min(plan.dx, 5),
        dy=max(2, min(plan.dy, 4)),
    )
    law = answers.Law(rng, plan)
    return plan, law.problem(False), law.samples(rng), answers.drawn_basis(rng, plan)


def solved(problem, samples, basis, dear):
    fewer._DEAR = dear
    cb.solve(problem, samples, basis)
    return harness.timed(lambda: cb.solve(problem, samples, basis))


def main():
    given = harness.arguments(
        __doc__, ("--problems", 200), ("--first", 0), ("--json", Path, "where the measurements are written")
    )
    print(harness.circumstances())
    worst, seconds, staged, others = [], np.zeros(2), 0, 0
    for seed in range(given.first, given.first + given.problems):
        plan, problem, samples, basis = drawn(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (one, a), (other, b) = (solved(problem, samples, basis, dear) for dear in (0, np.inf))
            error = np.asarray(other.uncertainty.error, float)
        few = int(np.sum(one.history["rows"] < ROWS))
        apart = np.abs(np.asarray(one.x, float) - np.asarray(other.x, float)) / np.where(error > 0, error, np.inf)
        values = [float(each.history["upper"][-1]) for each in (one, other)]
        same = abs(values[0] - values[1]) <= MINIMUM * max(map(abs, values))
        staged, others, seconds = staged + bool(few), others + (not same), seconds + np.array([a, b])
        worst += [float(np.nanmax(apart, initial=0.0))] if same else []
        ends = one.result.name if one.result is other.result else f"{one.result.name} {other.result.name}"
        passes = [max(each["samples"] for each in s.stats["oracles"].values()) / ROWS for s in (one, other)]
        print(
            f"{seed:4d} {plan.what:70.70s} {basis!r:34.34s} {np.nanmax(apart, initial=0.0):8.1e}{'' if same else ' *'} "
            f"steps {few}+{one.stats['steps'] - few} {other.stats['steps']}, passes {passes[0]:.1f} {passes[1]:.1f}, "
            f"{a:.2f} {b:.2f} s {ends}",
            flush=True,
        )
    print(
        f"{staged} of {given.problems} in stages; {others} ended at another minimum (*); largest difference "
        f"{max(worst):.2g} standard errors (goal {GOAL:g}); {seconds[0]:.0f} s with, {seconds[1]:.0f} s without stages"
    )
    lines = [{"what": "stages: largest difference of x", "value": max(worst), "unit": "standard errors", "goal": GOAL}]
    harness.write_measurements(given.json, lines)


if __name__ == "__main__":
    main()
