"""How well ``solve(problem, samples, tolerance=...)`` chooses the number of functions, and what choosing costs.

The best N is the smallest whose solution, with the population in place of the samples, loses no more of ``F`` than the
tolerance; N chosen from samples is compared with it, and the oracle samples of the whole run with those of one
solve at the best N. Two-edge traffic (population: 5000 other samples, exact flows), and one-dimensional policies that
are analytic, kinked, or seen through noise (population: quadrature).
"""

import warnings
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 20, 24, 28, 32, 40, 48, 64)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Policy:
    """``y* = x phi(xi)``: analytic with poles at ``0.2 +- i w``, or with a kink at ``t``."""

    width: float
    kink: float
    share: float

    def __call__(self, xi):
        return 1 / (1 + ((xi - 0.2) / self.width) ** 2) + self.share * jnp.abs(xi - self.kink)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lower:
    policy: Policy

    def __call__(self, x, y, xi, eta):
        return (y - x * self.policy(xi) - eta) ** 2 / 2


def upper(x, y, xi, eta):
    return (y - 1 - jnp.sin(2 * xi)) ** 2 / 2 + 0.05 * (x - 2) ** 2


def shapes(rng, kind):
    """A random problem of a kind, its samples, and the best N for a tolerance."""
    share = rng.uniform(1.0, 2.0) if kind == "kinked" else 0.0
    policy = Policy(*(jnp.asarray(v) for v in (rng.uniform(0.2, 0.6), rng.uniform(-0.6, 0.6), share)))
    problem = cb.Problem(upper, Lower(policy), x0=1.0, y0=0.0, domain=cb.Interval(-1.0, 1.0))
    noise = 0.3 if kind == "noisy" else 0.0
    samples = cb.Samples(rng.uniform(-1, 1, 2000), noise * rng.normal(size=2000))
    nodes, weights = np.polynomial.legendre.leggauss(2000)
    weights, phi, target = weights / 2, np.asarray(policy(nodes)), 1 + np.sin(2 * nodes)
    solve = lambda seen: (weights @ (seen * target) + 0.2) / (weights @ seen**2 + 0.1)
    loss = lambda x: weights @ (x * phi - target) ** 2 / 2 + 0.05 * (x - 2) ** 2

    def lost(n):
        table = np.polynomial.legendre.legvander(nodes, n - 1) * np.sqrt(2 * np.arange(n) + 1)
        return loss(solve(table @ (table.T @ (weights * phi)))) / loss(solve(phi)) - 1

    return problem, samples, lost


def roads(seed):
    instance = cb.gallery.two_edge_traffic(seed, test=5000)
    loss = jax.jit(lambda x, truth, data: truth.loss(x, data))
    least = float(loss(jnp.asarray(instance.truth.sample_optimum(instance.test)), instance.truth, instance.test))

    def lost(n):
        found = cb.solve(instance.problem, instance.test, basis=cb.Chebyshev(n))
        return float(loss(found.x, instance.truth, instance.test)) / least - 1

    return instance.problem, instance.train, lost


def main() -> None:
    arguments = harness.arguments(__doc__, ("--seeds", 50), ("--shapes", 20))
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    cases = {kind: [shapes(rng, kind) for _ in range(arguments.shapes)] for kind in ("analytic", "kinked", "noisy")}
    cases["traffic"] = [roads(seed) for seed in range(arguments.seeds)]
    for kind, instances in cases.items():
        known = [{} for _ in instances]
        for tolerance in (1e-2, 1e-3):
            rows = []
            for (problem, samples, lost), table in zip(instances, known, strict=True):
                for n in SIZES:
                    table[n] = lost(n) if n not in table else table[n]
                    if table[n] <= tolerance:
                        break
                found = cb.solve(problem, samples, tolerance=tolerance)
                single = cb.solve(problem, samples, basis=cb.Orthonormal(cb.Chebyshev(n)))
                size = found.stats["functions"]
                table[size] = lost(size) if size not in table else table[size]
                rows.append((n, size, found.stats["samples"] / single.stats["samples"], table[size] <= tolerance))
            best, size, cost, met = np.array(rows, float).T
            ratio = size / best
            print(
                f"{kind:9s} tolerance {tolerance:5.3f}: N within a factor 1.5 of the best in "
                f"{100 * np.mean((ratio <= 1.5) & (ratio >= 1 / 1.5)):3.0f}% (median best {np.median(best):.0f}, "
                f"chosen {np.median(size):.0f}, ratio {ratio.min():.2f} to {ratio.max():.2f}); N chosen meets it in "
                f"{100 * met.mean():.0f}%; cost at most 3 solves in {100 * np.mean(cost <= 3):.0f}% (median "
                f"{np.median(cost):.1f}, most {cost.max():.1f})",
                flush=True,
            )
            print("    best, chosen:", " ".join(f"{int(b)},{int(s)}" for b, s in zip(best, size, strict=True)))


if __name__ == "__main__":
    main()
