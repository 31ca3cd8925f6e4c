"""Sample complexity on a stream, and how it grows when the basis is badly conditioned.

1. Samples against the norm of the true gradient, for a plain solver (SOBA) and a variance-reduced one (FdeHBO), on a
   convex and on a nonconvex F: the slope in a log-log plot over a decade or more, with a bootstrap interval over seeds.
   Theory, worst case: -4 and -3.
2. Samples until 1% of the gap at default steps (those for measuring the steps apart), for the same span of functions
   given as Monomial, Chebyshev and Orthonormal, against 1/m_Phi, the smallest eigenvalue of their Gram matrix.

Run: python benchmarks/complexity.py
"""

import itertools

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import cobilevel as cb
from cobilevel.implicit import solve_at
from cobilevel.oracles import Ledger
from cobilevel.solver import Result, advance

SEEDS, BATCH, EVERY, FIRST = 8, 2, 16, 128


def instance_and_stream(bumps):
    """A quadratic instance, its endless stream, and a noise-free twin whose reduced gradient is the population's.

    Both objectives are quadratic in the noise, so gradients only see its conditional mean.
    """
    base = cb.gallery.quadratic(3, dx=2, dy=1, train=16, test=16, condition=1.0, noise=(0.5, 0.5))
    truth = base.truth

    def upper(x, y, xi, eta):
        return base.problem.upper(x, y, xi, eta) + bumps * jnp.sum(jnp.cos(3 * x))

    problem = cb.Problem(upper, base.problem.lower, base.problem.x0, base.problem.y0, base.problem.domain)

    def draw(key, size):
        for_contexts, for_noise = jax.random.split(key)
        xi = truth.contexts.sample(for_contexts, size)
        noise = 0.5 * jax.random.normal(for_noise, (2, size, 1))
        return cb.Samples(
            xi,
            {
                "upper": jax.vmap(truth.target)(xi) + noise[0],
                "lower": jax.vmap(truth.offset)(xi) + noise[1],
            },
        )

    nodes, weights = truth.contexts.quadrature(64)
    means = {"upper": jax.vmap(truth.target)(nodes), "lower": jax.vmap(truth.offset)(nodes)}
    return problem, cb.Stream(draw), cb.Samples(nodes, means, weights)


def gradient_norms(exact, xs, bumps):
    """The norm of the population gradient at many points: affine in x, but for the bumps."""
    plain = cb.reduce(instance_and_stream(0.0)[0], exact.basis.basis, instance_and_stream(0.0)[2])
    gradient = jax.jit(lambda x: solve_at(plain, x, plain.W0, 1e-12, Ledger.empty())[0].gradient)
    constant = np.asarray(gradient(jnp.zeros(2)))
    matrix = np.stack([np.asarray(gradient(unit)) - constant for unit in jnp.eye(2)])
    return np.linalg.norm(xs @ matrix + constant - 3 * bumps * np.sin(3 * xs), axis=-1)


def slopes(kind, bumps, power, momentum, steps):
    problem, stream, twin = instance_and_stream(bumps)
    basis = cb.Orthonormal(cb.Chebyshev(3))
    reduced, exact = cb.reduce(problem, basis, stream), cb.reduce(problem, basis, twin)
    fade = lambda value: cb.Polynomial(value, power, 30.0)
    scales = kind(batch=BATCH).measure(reduced, jax.random.key(1)).scales
    inner, outer = float(scales.inner), float(scales.outer(0.5))
    settings = {"inner": fade(inner), "linear": fade(inner), "outer": fade(outer), "batch": BATCH}
    solver = kind(**settings, **({"momentum": momentum, "radius": 100.0} if momentum is not None else {}))

    def one(key):
        def onward(state, _):
            state, _ = advance(solver, reduced, state, EVERY)
            return state, state.x

        state, xs = jax.lax.scan(onward, solver.init(reduced, key, steps), None, length=steps // EVERY)
        return xs, state.ledger

    xs, ledgers = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(0), SEEDS))
    ledger = jax.tree.map(lambda a: a[0], ledgers)
    per_step = sum(count["samples"] for count in ledger.totals().values()) / steps
    sizes = gradient_norms(exact, np.asarray(xs), bumps)
    edges = np.unique(np.geomspace(FIRST, steps, 24).astype(int) // EVERY)  # the norm is averaged between these times
    windows = list(itertools.pairwise(edges))
    samples = np.array([per_step * EVERY * (left + right) / 2 for left, right in windows])
    power_of = np.array([[np.mean(row[left:right] ** 2) for left, right in windows] for row in sizes])

    def fit(seeds):
        norm = np.sqrt(np.mean(power_of[seeds], axis=0))
        return np.polyfit(np.log(norm), np.log(samples), 1)[0], norm

    rng = np.random.default_rng(0)
    slope, norm = fit(np.arange(SEEDS))
    spread = np.quantile([fit(rng.integers(0, SEEDS, SEEDS))[0] for _ in range(500)], [0.025, 0.975])
    return slope, spread, norm[0], norm[-1], samples[0], samples[-1]


def conditioning():
    print("\nthe same span in three bases: SOBA at its defaults until 1% of the gap, measuring apart")
    print(f"{'n':>2} {'basis':12} {'m_Phi':>9} {'M_Phi':>6} {'samples':>10}")
    rows = []
    instance = cb.gallery.quadratic(0, dx=2, dy=1, train=1024, test=10, condition=1.0)
    for n in (2, 3, 4, 5, 6):
        for name, basis in (
            ("Orthonormal", cb.Orthonormal(cb.Chebyshev(n))),
            ("Chebyshev", cb.Chebyshev(n)),
            ("Monomial", cb.Monomial(n)),
        ):
            reduced = cb.reduce(instance.problem, basis, instance.train)
            phi = np.asarray(reduced.lower_pool.features)
            least = min(1.0, np.linalg.eigvalsh(phi.T @ phi / len(phi))[0])
            largest = max(1.0, np.linalg.norm(phi, axis=1).max())
            best, _ = instance.truth.sample_optimum(reduced.basis, instance.train, instance.train)
            spent = until(reduced, jnp.asarray(best))
            rows.append((name, n, least, spent))
            print(
                f"{n:2} {name:12} {least:9.2e} {largest:6.2f} {'not reached' if spent is None else f'{spent:10.2e}'}",
                flush=True,
            )
    reached = [(np.log(1 / least), np.log(spent)) for _, _, least, spent in rows if spent is not None]
    x, y = np.array(reached).T
    slope, offset = np.polyfit(x, y, 1)
    error = np.sqrt(np.sum((y - slope * x - offset) ** 2) / (len(x) - 2) / np.sum((x - x.mean()) ** 2))
    print(f"samples grow as (1/m_Phi)^{slope:.2f} +- {2 * error:.2f} over all three")


def until(reduced, best, share=0.01, most=400_000):
    solver = cb.SOBA()
    value = jax.jit(lambda x: solve_at(reduced, x, reduced.W0, 1e-12, Ledger.empty())[0].value)
    first, lowest = value(reduced.x0), value(best)
    start = solver.measure(reduced, jax.random.key(0))
    count = lambda ledger: sum(kind["samples"] for kind in ledger.totals().values())
    state = solver.init(reduced, jax.random.key(1), most, start)
    while int(state.result) == Result.RUNNING and int(state.step) < most:
        state, _ = advance(solver, reduced, state, 20)
        if (value(state.x) - lowest) / (first - lowest) < share:
            return count(state.ledger) - count(start.ledger)
    return None


def main():
    print(f"stream, batches of {BATCH}, {SEEDS} seeds: samples ~ norm^slope")
    print(f"{'F':10} {'solver':8} {'slope':>7} {'95% interval':>18} {'theory':>7} {'norms':>20} {'samples':>20}")
    for label, bumps in (("convex", 0.0), ("nonconvex", 0.4)):
        for kind, power, momentum, theory, steps in (
            (cb.SOBA, 1 / 2, None, -4, 2**19),
            (cb.FdeHBO, 1 / 3, cb.Polynomial(1.0, 2 / 3, 1.0), -3, 2**17),
        ):
            slope, spread, top, bottom, few, many = slopes(kind, bumps, power, momentum, steps)
            print(
                f"{label:10} {kind.__name__:8} {slope:7.2f} {f'[{spread[0]:.2f}, {spread[1]:.2f}]':>18} {theory:7}"
                f" {f'{top:.2g} to {bottom:.2g}':>20} {f'{few:.1e} to {many:.1e}':>20}",
                flush=True,
            )
    conditioning()


if __name__ == "__main__":
    main()
