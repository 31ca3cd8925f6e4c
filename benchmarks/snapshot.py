"""Two-edge traffic, whose policy has kinks: how many functions a learned basis saves.

For each basis the policy error on test samples and the loss over that at the exact-lower-level optimum of the training
sample, medians over instances; then how many Chebyshev functions reach the policy error of each learned basis.
"""

import jax
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb

LADDER = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SNAPSHOTS = (2, 3, 4, 6, 8)
NETWORKS = (4, 8)


def main() -> None:
    arguments = harness.arguments(__doc__, ("--seeds", 10), ("--neural-seeds", 2, "networks take longer to learn"))
    instances = [cb.gallery.two_edge_traffic(seed) for seed in range(arguments.seeds)]
    best = [truth.loss(truth.sample_optimum(train), test) for _, train, test, truth in map(parts, instances)]
    print(f"{arguments.seeds} instances; medians, and the worst policy error")
    print(f"{'basis':16s} {'seeds':>5s} {'policy error':>12s} {'worst':>9s} {'loss / optimum':>14s} {'worst':>9s} "
          f"{'settled':>7s} {'ms a solve':>10s}")  # fmt: skip
    figures = {}
    bases = [cb.Chebyshev(n) for n in LADDER] + [cb.Snapshot(n) for n in SNAPSHOTS] + [cb.Neural(n) for n in NETWORKS]
    for basis in bases:
        count = arguments.neural_seeds if isinstance(basis, cb.Neural) else arguments.seeds
        errors, ratios, settled, seconds = [], [], 0, []
        for instance, optimum in zip(instances[:count], best, strict=False):
            solution, took = harness.timed(cb.solve, instance.problem, instance.train, basis=basis)
            seconds.append(took)
            judged = cb.evaluate(instance.problem, solution, instance.test)
            errors.append(judged.policy_error)
            ratios.append(judged.loss / float(optimum))
            settled += "has not settled" not in solution.choices.get("basis", "")
        figures[basis] = float(np.median(errors))
        print(
            f"{basis!r:16s} {count:5d} {np.median(errors):12.2e} {max(errors):9.1e} {np.median(ratios):14.5f} "
            f"{max(ratios):9.5f} {settled:7d} {1e3 * np.median(seconds):10.0f}",
            flush=True,
        )
    print("\nChebyshev functions for the same median policy error")
    for basis in bases[len(LADDER) :]:
        enough = [n for n in LADDER if figures[cb.Chebyshev(n)] <= figures[basis]]
        print(f"{basis!r:16s} {enough[0] if enough else f'more than {LADDER[-1]}'}")


def parts(instance):
    return instance.problem, instance.train, instance.test, instance.truth


if __name__ == "__main__":
    main()
