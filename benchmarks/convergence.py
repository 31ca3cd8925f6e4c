"""Gap against samples for every solver at its defaults, on a finite sum of 1024 samples (condition number 94).

Prints where each ends, and for those with constant outer steps the noise floor that theory predicts: for a quadratic,
``E gap = alpha tr(C) / 4`` with ``C`` the covariance of the hypergradient estimates. Writes docs/convergence.png.
Run: python benchmarks/convergence.py [solver ...]
"""

import sys
from pathlib import Path

import jax

import harness

jax.config.update("jax_enable_x64", True)

import numpy as np
from matplotlib.figure import Figure

import cobilevel as cb
from cobilevel.derivatives import Expansions, flattened
from cobilevel.iteration import advance
from cobilevel.lower import solve_at
from cobilevel.solvers import STOCHASTIC

BASIS = cb.Orthonormal(cb.Chebyshev(3))
MOST_SAMPLES = 4e7
GROUPS = {
    "finite sums, to the exact point": ("SABA", "SPABA", "HOAG"),
    "plain": ("SOBA", "AmIGO", "StocBiO", "BSA", "TTSA", "STABLE", "F2SA"),
    "variance reduced": ("SUSTAIN", "MRBO", "VRBO", "RSVRB", "FdeHBO"),
}


def problem():
    instance = cb.gallery.quadratic(0, dx=2, dy=2, train=1024, test=10, condition=60.0)
    reduced = cb.reduce(instance.problem, BASIS, instance.train)
    best, _ = instance.truth.sample_optimum(reduced.basis, instance.train, instance.train)
    # the reduced objective is quadratic in x, so differences of its gradient are its Hessian
    gradient = lambda x: np.asarray(exact_gradient(reduced, x))
    hessian = np.stack([gradient(best + unit) - gradient(best) for unit in np.eye(len(best))])
    return reduced, best, (hessian + hessian.T) / 2


def exact_gradient(reduced, x):
    expansions = Expansions(reduced.ordinary())
    return solve_at(expansions, flattened(x), expansions.table(reduced.W0), 1e-12).gradient


def run(kind, reduced, gap):
    solver = kind()
    reduced = solver.prepare(reduced)
    state = solver.init(reduced, jax.random.key(1), 4 * solver.default_steps)
    problem, curve = reduced.ordinary(), []
    while bool(state.clock.running):
        state, _ = advance(solver, problem, state, 50 if int(state.step) < 2000 else 200)
        spent = sum(count["samples"] for count in state.ledger.totals().values())
        curve.append((spent, gap(np.asarray(state.x))))
        if spent > MOST_SAMPLES:
            break
    outer = solver.defaults(state.scales)["outer"]
    floor = float("nan")
    if kind.__name__ in ("StocBiO", "AmIGO", "STABLE"):
        floor = float(outer * state.trend.power) / 4
    return np.array(curve), state, floor


def main():
    names = sys.argv[1:] or [kind.__name__ for kind in STOCHASTIC]
    reduced, best, hessian = problem()
    energy = lambda x: (x - best) @ hessian @ (x - best) / 2
    first = energy(np.asarray(reduced.x0))
    curves = {}
    print(f"{'solver':8} {'samples':>9} {'last gap':>9} {'floor':>9} {'predicted':>9} (relative to the first gap)")
    for name in names:
        (curve, state, predicted), seconds = harness.timed(run, getattr(cb, name), reduced, lambda x: energy(x) / first)
        curves[name] = curve
        tail = curve[len(curve) // 2 :, 1].mean()
        ended = cb.Result.of(int(state.result)).name.lower()
        print(
            f"{name:8} {curve[-1, 0]:9.2e} {curve[-1, 1]:9.2e} {tail:9.2e} {predicted / first:9.2e}  {ended}"
            f" ({seconds:.0f} s)",
            flush=True,
        )
    draw(curves)


def draw(curves):
    figure = Figure(figsize=(13, 4.2), layout="tight")
    axes = figure.subplots(1, 3, sharey=True)
    for axis, (title, group) in zip(axes, GROUPS.items(), strict=True):
        for name in group:
            if name in curves:
                axis.loglog(*np.maximum(curves[name], 1e-17).T, label=name, lw=1.4)
        axis.axhline(0.01, color="0.6", lw=0.8, ls=":")
        axis.set(title=title, xlabel="samples, all oracles")
        axis.legend(fontsize=8)
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("gap, relative to the first")
    out = Path(__file__).parents[1] / "docs" / "convergence.png"
    figure.savefig(out, dpi=130)
    print("wrote docs/convergence.png")


if __name__ == "__main__":
    main()
