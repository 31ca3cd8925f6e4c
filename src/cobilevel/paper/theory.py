"""The claims of the theory, checked on random quadratics.

P2, T1 and T3 in closed form: contexts are the nodes of a Gauss rule with the conditional means in place of noise, so
expectations are exact and NumPy solves the reduced problem directly. T2 by runs on a stream, held against the gradients
of the population: problems are quadratic in the noise, so the rule without noise has them.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..basis import Basis, Chebyshev, Monomial, Orthonormal
from ..derivatives import Expansions, Ledger, flattened
from ..gallery import Instance, quadratic
from ..iteration import PolynomialDecay, Stochastic, advance, measure
from ..lower import solve_at
from ..problem import Problem, Samples, Stream
from ..reduction import Bilevel, reduce_study
from ..solvers import SOBA
from ..study import Study
from .claims import verdict

SEEDS, BATCH = 8, 2  # of the runs on a stream


def _without_noise(one: Instance, nodes: int) -> Samples:
    """The contexts of an instance as a Gauss rule, with the conditional means in place of noise."""
    xi, weights = one.truth.contexts.quadrature(nodes)
    means = {"upper": one.truth.target, "lower": one.truth.offset}
    return Samples(xi, {name: jax.vmap(waves)(jnp.asarray(xi)) for name, waves in means.items()}, weights)


def _quiet(seed: int, condition: float, dimension: int | None = None, nodes: int = 48) -> tuple[Instance, Samples]:
    one = quadratic(seed, dx=2, dy=2, dimension=dimension, train=4, test=4, condition=condition, noise=(0.0, 0.0))
    return one, _without_noise(one, nodes)


def _solve(one: Instance, data: Samples, n: int) -> tuple[float, float, float]:
    """The reduced problem solved exactly: the true gradient there, the policy's squared error, and the least one."""
    fitted = Chebyshev(n).fit(one.problem.domain, data.xi, data.weights)
    x, W = one.truth.sample_optimum(fitted, data, data)
    phi, share = np.asarray(fitted(data.xi)), data.shares()
    exact = np.asarray(one.truth.y(jnp.asarray(x), data.xi))
    root = np.sqrt(share)[:, None]
    best = np.linalg.lstsq(root * phi, root * exact, rcond=None)[0]
    error = lambda coefficients: float(share @ np.sum((phi @ coefficients - exact) ** 2, axis=1))
    return float(np.linalg.norm(one.truth.gradient(jnp.asarray(x)))), error(W), error(best)


def quasi_optimality(count: int = 20) -> dict[str, Any]:
    """P2: squared errors of the reduced lower level over the best in the span, against the condition number."""
    rows = []
    for seed, condition in enumerate(np.geomspace(1, 1e3, count)):
        one, data = _quiet(seed, condition)
        spectra = np.linalg.eigvalsh(jax.vmap(one.truth.lower.metric)(data.xi))
        bound = spectra.max() / spectra.min()
        solved = [_solve(one, data, n) for n in (2, 3, 4)]
        rows += [(error / least, bound) for _, error, least in solved]
    ratio, bound = np.array(rows).T
    measured = f"largest ratio {ratio.max():.3g}; at most {100 * np.max(ratio / bound):.2g}% of L/mu"
    how = f"{count} random quadratics of condition 1 to 1000, Chebyshev N = 2, 3, 4; expectations by quadrature."
    return verdict("P2", bool(np.all(ratio <= bound)), measured, "ratio of squared errors at most L/mu, always", how)


def stationarity() -> dict[str, Any]:
    """T1: the true gradient where the reduced problem is stationary, as the basis grows; and the counterexample."""
    sizes, table = (2, 4, 6, 8, 10), []
    for seed in range(8):
        one, data = _quiet(seed, 10.0)
        first = float(np.linalg.norm(one.truth.gradient(jnp.zeros(2))))
        table.append([_solve(one, data, n)[0] / first for n in sizes])
    shares, gap = np.max(table, axis=0), _counterexample()
    measured = "true gradient over that at x0, the largest of 8: " + ", ".join(
        f"N = {n}: {s:.1e}" for n, s in zip(sizes, shares, strict=True)
    )
    how = (
        "Eight random quadratics, the reduced problem solved in closed form. The printed bound at one x by the policy "
        "error alone does not hold: with the basis 1, xi and g = (y - x xi^2 - 1 - xi)^2 / 2, f = e^xi y at x = 0 the "
        f"policy is exact and the hypergradient off by {gap:.4f}. Nor does the theorem with its printed tolerance; it "
        "holds with a smaller one, of the fourth power of eps: docs/theory.md has proofs and counterexamples."
    )
    falls = shares[-1] < 1e-6 and all(b < a or b < 1e-12 for a, b in itertools.pairwise(shares))
    return verdict("T1", bool(falls), measured, "falls with N, below 1e-6 at N = 10", how, corrected=True)


def _counterexample(nodes: int = 2000) -> float:
    """The hypergradient gap where the policy is exact: the reduced one is a Galerkin projection."""
    xi = -1 + (np.arange(nodes) + 0.5) * 2 / nodes
    phi = np.stack([np.ones(nodes), xi], axis=1)
    adjoint, sensitivity = np.exp(xi), xi**2
    project = lambda v: phi @ np.linalg.lstsq(phi, v, rcond=None)[0]
    return abs(float(np.mean((adjoint - project(adjoint)) * (sensitivity - project(sensitivity)))))


def expressiveness() -> dict[str, Any]:
    """T3: the error of analytic policies against N, in one and two dimensions; and the conditioning of the basis."""
    fits = {}
    for dimension, sizes in ((None, range(2, 11)), (2, range(2, 8))):
        lines = []
        for seed in range(4):
            one, data = _quiet(seed, 3.0, dimension, 48 if dimension is None else 16)
            errors = np.array([np.sqrt(_solve(one, data, n)[1]) for n in sizes])
            rate, _ = np.polyfit(list(sizes), np.log(errors), 1)
            lines.append((rate, np.corrcoef(list(sizes), np.log(errors))[0, 1] ** 2))
        fits[dimension or 1] = (max(s for s, _ in lines), min(r for _, r in lines))
    nodes, weights = np.polynomial.legendre.leggauss(256)
    least = []
    for n in range(2, 101):
        phi = np.polynomial.chebyshev.chebvander(nodes, n - 1) * np.sqrt(weights / 2)[:, None]
        least.append(n * np.linalg.svd(phi, compute_uv=False)[-1] ** 2)
    words = "; ".join(f"d = {d}: error ~ {np.exp(s):.2g}^n, R^2 {r:.3f}" for d, (s, r) in fits.items())
    measured = f"{words}; N m_Phi from {min(least):.2g} to {max(least):.2g} for N = 2 to 100"
    holds = bool(all(s < -0.5 and r > 0.97 for s, r in fits.values()) and min(least) > 0.067)
    how = "The worst of four random quadratics. N = n^d functions: log error straight in n means N ~ ln^d(1/eps)."
    return verdict("T3", holds, measured, "R^2 above 0.97 and falling; N m_Phi above the lemma's 0.067", how)


def theory() -> list[dict[str, Any]]:
    """The verdicts that need no runs."""
    return [quasi_optimality(), stationarity(), expressiveness()]


# -- T2: sample complexity on a stream, and how it grows when the basis is badly conditioned


def _problem(bumps: float) -> tuple[Problem, Stream, Samples]:
    """A quadratic problem, its endless stream, and its samples without noise; `bumps` makes ``F`` nonconvex."""
    noise = 0.5
    base = quadratic(3, dx=2, dy=1, train=16, test=16, condition=1.0, noise=(noise, noise))
    truth = base.truth

    def upper(x, y, xi, eta):
        return base.problem.upper(x, y, xi, eta) + bumps * jnp.sum(jnp.cos(3 * x))

    def draw(key, size):
        for_contexts, for_noise = jax.random.split(key)
        xi = truth.contexts.sample(for_contexts, size)
        shifts = noise * jax.random.normal(for_noise, (2, size, 1))
        means = {"upper": jax.vmap(truth.target)(xi), "lower": jax.vmap(truth.offset)(xi)}
        return Samples(xi, {name: mean + shift for (name, mean), shift in zip(means.items(), shifts, strict=True)})

    problem = Problem(upper, base.problem.lower, base.problem.x0, base.problem.y0, base.problem.domain)
    return problem, Stream(draw), _without_noise(base, 64)


def _with_lower_solved(reduced: Bilevel) -> Callable[[Any], Any]:
    """The reduced problem at any ``x``, its lower level solved but for a gradient of 1e-12."""
    at = Expansions(reduced)
    return lambda x: solve_at(at, flattened(x), at.table(reduced.W0), 1e-12)


def _gradient_norms(xs: np.ndarray, bumps: float, basis: Basis) -> np.ndarray:
    """The norm of the population gradient at many points: affine in ``x``, but for the bumps."""
    problem, _, exact = _problem(0.0)
    plain = reduce_study(Study.of(problem, exact), basis)
    at = _with_lower_solved(plain.ordinary())
    gradient = lambda x: at(x).gradient
    constant = gradient(np.zeros(2))
    matrix = np.stack([gradient(unit) - constant for unit in np.eye(2)])
    return np.linalg.norm(xs @ matrix + constant - 3 * bumps * np.sin(3 * xs), axis=-1)


def slope(
    kind: type[Stochastic], bumps: float, power: float, momentum: Any, steps: int, every: int = 16, first: int = 128
) -> dict[str, Any]:
    """Samples against the norm of the true gradient, with steps that fade like ``k ** -power``.

    Runs are looked at `every` so many steps; what comes before `first` does not count. **Returns:** samples grow as
    ``norm ** value``, with `low` and `high` bounding the slope at 95% (bootstrap over seeds); `late`, the same three
    over the later half of the times alone, which a fast beginning cannot flatten; and the ends of norms and samples.
    """
    problem, stream, _ = _problem(bumps)
    basis = Orthonormal(Chebyshev(3))
    reduced = reduce_study(Study.of(problem, stream), basis)
    fade = lambda value: PolynomialDecay(value, power, 30.0)
    scales = measure(reduced, jax.random.key(1), BATCH).scales
    inner, outer = fade(float(scales.inner)), fade(float(scales.outer(0.5)))
    settings = {"inner": inner, "linear": inner, "outer": outer, "batch": BATCH}
    solver = kind(**settings, **({"momentum": momentum, "radius": 100.0} if momentum is not None else {}))

    def one(key):
        def onward(state, _):
            state, _ = advance(solver, reduced, state, every)
            return state, state.x

        state, xs = jax.lax.scan(onward, solver.init(reduced, key, steps), None, length=steps // every)
        return xs, state.ledger

    xs, ledgers = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(0), SEEDS))
    spent = _samples(jax.tree.map(lambda a: a[0], ledgers)) / steps
    sizes = _gradient_norms(np.asarray(xs), bumps, basis)
    edges = np.unique(np.geomspace(first, steps, 24).astype(int) // every)  # norms are averaged between these times
    windows = list(itertools.pairwise(edges))
    samples = np.array([spent * every * (left + right) / 2 for left, right in windows])
    squares = np.array([[np.mean(row[left:right] ** 2) for left, right in windows] for row in sizes])

    def fit(seeds, begin=0):
        norm = np.sqrt(np.mean(squares[seeds], axis=0))
        return np.polyfit(np.log(norm[begin:]), np.log(samples[begin:]), 1)[0], norm

    def bounded(begin):
        rng = np.random.default_rng(0)
        again = [fit(rng.integers(0, SEEDS, SEEDS), begin)[0] for _ in range(500)]
        return float(fit(np.arange(SEEDS), begin)[0]), *(float(q) for q in np.quantile(again, [0.025, 0.975]))

    (value, low, high), (_, norm) = bounded(0), fit(np.arange(SEEDS))
    ends = lambda table: (float(table[0]), float(table[-1]))
    found = {"value": value, "low": low, "high": high, "late": bounded(len(samples) // 2)}
    return found | {"norms": ends(norm), "samples": ends(samples)}


def _samples(ledger: Ledger) -> int:
    return sum(kind["samples"] for kind in ledger.totals().values())


def _until(reduced: Bilevel, best: Array, share: float = 0.01, most: int = 400_000) -> int | None:
    """Samples SOBA takes at its defaults until `share` of the gap is left, those for its step sizes not counted; none
    where `most` steps do not suffice."""
    solver, at = SOBA(), _with_lower_solved(reduced)
    value = lambda x: at(x).value
    first, lowest = value(reduced.x0), value(best)
    state = solver.init(reduced, jax.random.key(1), most)
    measuring = _samples(state.ledger)
    while bool(state.clock.running):
        state, _ = advance(solver, reduced, state, 20)
        if (value(state.x) - lowest) / (first - lowest) < share:
            return _samples(state.ledger) - measuring
    return None


def conditioning(sizes: Sequence[int] = range(2, 7)) -> list[dict[str, Any]]:
    """The same span in three bases: ``m_Phi``, ``M_Phi``, and the samples until 1% of the gap."""
    rows = []
    instance = quadratic(0, dx=2, dy=1, train=1024, test=10, condition=1.0)
    for n in sizes:
        kinds = {"Orthonormal": Orthonormal(Chebyshev(n)), "Chebyshev": Chebyshev(n), "Monomial": Monomial(n)}
        for name, basis in kinds.items():
            reduced = reduce_study(Study.of(instance.problem, instance.train), basis)
            phi = np.asarray(reduced.lower_pool.features)
            least = min(1.0, float(np.linalg.eigvalsh(phi.T @ phi / len(phi))[0]))
            largest = max(1.0, float(np.linalg.norm(phi, axis=1).max()))
            best, _ = instance.truth.sample_optimum(reduced.basis, instance.train, instance.train)
            spent = _until(reduced.ordinary(), jnp.asarray(best))
            rows.append({"n": n, "basis": name, "m": least, "M": largest, "samples": spent})
    return rows


def growth(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """The power of ``1/m_Phi`` by which samples grow, and twice its standard error."""
    x, y = np.array([(np.log(1 / r["m"]), np.log(r["samples"])) for r in rows if r["samples"] is not None]).T
    power, offset = np.polyfit(x, y, 1)
    error = np.sqrt(np.sum((y - power * x - offset) ** 2) / (len(x) - 2) / np.sum((x - x.mean()) ** 2))
    return float(power), float(2 * error)


def complexity_verdict(measured: dict[str, Any]) -> dict[str, Any]:
    """The verdict on T2 from slopes (convex and nonconvex) and the growth with ``1/m_Phi``."""
    slopes, (power, error) = measured["slopes"], measured["growth"]
    bounded = lambda value, low, high: f"{value:.2f} [{low:.2f}, {high:.2f}]"
    words = "; ".join(
        f"{name}: slope {bounded(one['value'], one['low'], one['high'])} over norms {one['norms'][0]:.2g} to "
        f"{one['norms'][1]:.2g}, {bounded(*one['late'])} over the later half"
        for name, one in slopes.items()
    )
    calm = all(one["low"] >= -3 and one["late"][2] >= -3 for one in slopes.values())
    holds = calm and power + error < 4 and measured["reached"]
    how = (
        f"FdeHBO on a stream, batches of {BATCH}, {SEEDS} seeds, a convex and a nonconvex F: samples against the norm "
        "of the true gradient. The same span as Monomial, Chebyshev and Orthonormal, n = 2 to 6: samples of SOBA until "
        "1% of the gap, against 1/m_Phi."
    )
    threshold = (
        "no slope steeper than -3: over all times by its lower end, over the later half by its upper end; samples a "
        "power of 1/m_Phi, below 4"
    )
    return verdict("T2", holds, f"{words}; samples grow as (1/m_Phi)^{power:.2f} +- {error:.2f}", threshold, how)
