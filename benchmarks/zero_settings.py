"""``cb.solve(problem, samples)`` with no settings: does it end where it should, and does its certificate cover?

Two-edge traffic: the loss on 100 000 fresh samples with exact flows, over that at the optimum of the same training
sample with exact lower level. Quadratics: ``F`` in closed form over its minimum. A success is within 1%; the
certificate, from fresh samples, covers where its 95% interval holds the true gradient norm.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb


@jax.jit
def loss(x, truth, data):
    return jax.value_and_grad(truth.loss)(x, data)


def roads(seed):
    one = cb.gallery.two_edge_traffic(seed, test=101_000)
    fresh, many = one.test.rows(slice(0, 1000)), one.test.rows(slice(1000, None))
    best = loss(jnp.asarray(one.truth.sample_optimum(one.train)), one.truth, many)[0]

    def judge(x):
        value, slope = loss(x, one.truth, many)
        return float(value / best) - 1, float(jnp.linalg.norm(slope))

    return one.problem, one.train, fresh, judge


def quadratics(seed):
    one = cb.gallery.quadratic(seed)
    best = float(one.truth.F(one.truth.x))
    judge = lambda x: (float(one.truth.F(x)) / best - 1, float(jnp.linalg.norm(one.truth.gradient(x))))
    return one.problem, one.train, one.test, judge


def main() -> None:
    arguments = harness.arguments(__doc__, ("--seeds", 50))
    warnings.simplefilter("ignore")
    for kind, make in (("traffic", roads), ("quadratics", quadratics)):
        rows = []
        for seed in range(arguments.seeds):
            problem, train, fresh, judge = make(seed)
            solution, seconds = harness.timed(cb.solve, problem, train)
            excess, norm = judge(solution.x)
            low, high = cb.certify(problem, solution, fresh).gradient_norm.interval
            rows.append((excess, low <= norm <= high, solution.converged, solution.stats["functions"], seconds))
            if excess > 0.01 or not rows[-1][1] or not solution.converged:
                words = f"excess {excess:.1e}, norm {norm:.2e} in [{low:.1e}, {high:.1e}], {solution.result}"
                print(f"  {kind} {seed}: {words}", flush=True)
        excess, covers, converged, size, seconds = np.array(rows, float).T
        print(
            f"{kind}: within 1% and covered {100 * np.mean((excess <= 0.01) & (covers > 0)):.0f}%; within 1% "
            f"{100 * np.mean(excess <= 0.01):.0f}% (median excess {np.median(excess):.1e}, most {excess.max():.1e}); "
            f"covered {100 * covers.mean():.0f}%; converged {100 * converged.mean():.0f}%; N {size.min():.0f} to "
            f"{size.max():.0f}; median {np.median(seconds):.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
