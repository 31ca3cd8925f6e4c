"""Is the certificate true? Coverage of its interval, and its gap against the true one.

Random points, not stationary (the true gradient norm over three standard errors), of random quadratics (closed form)
and two-edge traffic (200 000 fresh samples with exact flows). Exact mode: how often the 95% interval holds the true
gradient norm, and its width in standard errors. Neighbours mode, from joint samples alone: its hypergradient gap
over the true one, with bases of 2 to 4 (quadratics) and 3 to 8 functions (traffic).
"""

import jax
import jax.numpy as jnp
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb
from cobilevel.derivatives import Expansions, flattened
from cobilevel.lower import solve_at


def gradient_of_reduced(problem, basis, data, x):
    reduced = cb.reduce(problem, basis, data).whitened().ordinary()
    at = Expansions(reduced)
    return np.asarray(solve_at(at, flattened(x), at.table(reduced.W0), 1e-12).gradient)


def quadratics(seeds, rng):
    for seed in seeds:
        instance = cb.gallery.quadratic(seed)
        x, n = jnp.asarray(rng.normal(size=5)), int(rng.integers(2, 5))
        truth = instance.truth
        nodes, weights = truth.contexts.quadrature(64)
        quiet = {"upper": jax.vmap(truth.target)(nodes), "lower": jax.vmap(truth.offset)(nodes)}
        reduced = gradient_of_reduced(instance.problem, cb.Chebyshev(n), cb.Samples(nodes, quiet, weights), x)
        yield f"quadratic {seed}", instance.problem, instance.test, x, n, np.asarray(truth.gradient(x)), reduced


def roads(seeds, rng):
    loss = jax.jit(jax.grad(lambda x, truth, data: truth.loss(x, data)))
    for seed in seeds:
        instance = cb.gallery.two_edge_traffic(seed, test=200_000)
        x, n = jnp.asarray(rng.uniform(0.2, 0.8, 2)), int(rng.integers(3, 9))
        reduced = gradient_of_reduced(instance.problem, cb.Chebyshev(n), instance.test, x)
        gradient = np.asarray(loss(x, instance.truth, instance.test))
        yield f"traffic {seed}", instance.problem, instance.train, x, n, gradient, reduced


def main() -> None:
    arguments = harness.arguments(__doc__, ("--quadratics", 200), ("--roads", 50), ("--first", 0, "the first seed"))
    first = arguments.first
    rng = np.random.default_rng(first)
    total = []
    cases = (
        ("quadratics", quadratics(range(first, first + arguments.quadratics), rng)),
        ("traffic", roads(range(first, first + arguments.roads), rng)),
    )
    for kind, instances in cases:
        rows = []
        for name, problem, data, x, n, gradient, reduced in instances:
            start = cb.reduce(problem, cb.Chebyshev(n), data)
            solution = start.lift(x, start.W0)
            exact = cb.certify(problem, solution, data).gradient_norm
            norm = np.linalg.norm(gradient)
            if norm < 3 * exact.error:
                print(f"  {name}: stationary within three standard errors, left out")
                continue
            low, high = exact.interval
            mode = "neighbours" if kind == "quadratics" else "enriched"  # traffic has no noise in its lower level
            gap = cb.certify(problem, solution, data, mode=mode).hypergradient_gap
            true_gap = float(np.linalg.norm(gradient - reduced))
            seen = gap.interval[0] > 0
            rows.append((low <= norm <= high, (high - low) / exact.error, float(gap) / true_gap, seen))
            if not 0.5 <= float(gap) / true_gap <= 2:
                print(f"  {name}: N = {n}, gap {gap!r}, true {true_gap:.2e}", flush=True)
        total += rows
        report(kind, rows)
    report("together", total)


def report(kind, rows):
    covers, width, ratio, seen = np.array(rows, float).T
    near = (ratio >= 0.5) & (ratio <= 2)
    print(
        f"{kind}: {len(rows)} points.\n"
        f"  exact: covers {100 * covers.mean():.1f}%, median width {np.median(width):.2f} s.e.\n"
        f"  neighbours: gap within a factor 2 in {100 * near.mean():.1f}%, too small by more than 4 in "
        f"{100 * np.mean(ratio < 0.25):.1f}%, median ratio {np.median(ratio):.2f}; of the {int(seen.sum())} gaps "
        f"distinguished from 0, within a factor 2 in {100 * near[seen > 0].mean():.1f}%",
        flush=True,
    )


if __name__ == "__main__":
    main()
