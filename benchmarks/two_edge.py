"""Two-edge traffic, 50 instances: what the reduction gives once the solver is exact.

For each basis: the test loss with exact flows, over that at the exact-lower-level optimum of the same training sample
(found by SciPy's L-BFGS-B on closed-form flows, no reduction involved) and over F_ref, paired over instances; the
policy error; how the runs ended.
"""

import jax
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import equinox as eqx

import cobilevel as cb

BASES = (
    cb.Chebyshev(3),
    cb.Chebyshev(5),
    cb.Chebyshev(10),
    cb.Chebyshev(20),
    cb.Fourier(5),
    cb.Fourier(10),
    cb.Orthonormal(cb.Monomial(10)),
    cb.Partition(10),
    cb.Partition(50),
)


@eqx.filter_jit
def exact_loss(x, truth, samples):
    """The loss with exact flows, and its gradient."""
    return jax.value_and_grad(truth.loss)(x, samples)


@eqx.filter_jit
def exact_flows(x, truth, xi):
    return truth.y(x, xi)


def main() -> None:
    arguments = harness.arguments(__doc__, ("--seeds", 50), ("--noise", 0.05), ("--only", "", "part of a basis's name"))
    seeds, noise = arguments.seeds, arguments.noise
    instances = [cb.gallery.two_edge_traffic(seed, noise) for seed in range(seeds)]
    best = [instance.truth.sample_optimum(instance.train) for instance in instances]
    print(f"{seeds} instances, noise {noise}; ratios are means +- two standard errors")
    print(
        f"{'basis':28s} {'loss / exact optimum':>22s} {'loss / F_ref':>20s} {'policy error':>12s} "
        f"{'converged':>9s} {'stalled':>7s} {'max gradient':>12s} {'ms a solve':>10s} {'compile s':>9s}"
    )
    for basis in (basis for basis in BASES if arguments.only in repr(basis)):
        over_best, over_ref, policy, size, seconds, ended, first = [], [], [], [], [], [], None
        for instance, x_best in zip(instances, best, strict=True):
            solution, took = harness.timed(cb.solve, instance.problem, instance.train, basis=basis, solver=cb.Newton())
            first = took if first is None else first
            seconds.append(took)
            truth, test = instance.truth, instance.test
            loss = float(exact_loss(solution.x, truth, test)[0])
            over_best.append(loss / float(exact_loss(x_best, truth, test)[0]))
            over_ref.append(loss / float(exact_loss(truth.x, truth, test)[0]))
            gap = exact_flows(solution.x, truth, test.xi) - solution.policy(test.xi)
            policy.append(float(np.mean(np.sum(gap**2, axis=1))))
            size.append(solution.history["gradient"][-1])
            ended.append(" ".join(solution.result.split(":")[0].split()[:4]))
        spread = lambda v: f"{np.mean(v):.5f} +- {2 * np.std(v, ddof=1) / np.sqrt(len(v)):.5f}"
        print(
            f"{basis!r:28s} {spread(over_best):>22s} {spread(over_ref):>20s} {np.mean(policy):12.2e} "
            f"{sum(e.startswith('Converged') for e in ended):9d} {ended.count('Stalled'):7d} {max(size):12.1e} "
            f"{1e3 * np.median(seconds):10.1f} {first:9.1f}",
            flush=True,
        )
        odd = [(k, w, f"{s:.1e}") for k, (w, s) in enumerate(zip(ended, size, strict=True)) if w != "Converged"]
        if odd:
            print(f"    ended otherwise (seed, how, projected gradient): {odd}")


if __name__ == "__main__":
    main()
