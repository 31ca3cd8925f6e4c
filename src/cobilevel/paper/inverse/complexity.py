"""Sample complexity on a stream, and how it grows when the basis is badly conditioned (claim T2).

Problems are quadratic in the noise, so a twin with conditional means in its place has the population's gradients.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ...basis import Basis, Chebyshev, Monomial, Orthonormal
from ...derivatives import Expansions, Ledger, flattened
from ...gallery import quadratic
from ...iteration import PolynomialDecay, Stochastic, advance, measure
from ...lower import solve_at
from ...problem import Problem, Samples, Stream, Study
from ...reduction import Bilevel, reduce_study
from ...solvers import SOBA
from ..claims import verdict

SEEDS, BATCH = 8, 2
_EVERY, _FIRST = 16, 128  # steps between two looks, and before the first that counts
_RESAMPLINGS = 500  # of the seeds, for the interval of a slope
_LOWER_LEFT = 1e-12  # the lower gradient left where the true gradient is asked for
_MOST_STEPS = 400_000  # after which a basis counts as not reached


@dataclass(frozen=True)
class Slope:
    """Samples grow as ``norm ** value``; `low` and `high` bound the slope at 95% (bootstrap over seeds).

    `late` is the same over the later half of the times alone, which a fast beginning cannot flatten.
    """

    value: float
    low: float
    high: float
    late: tuple[float, float, float]
    norms: tuple[float, float]
    samples: tuple[float, float]

    def words(self) -> str:
        first, last = self.norms
        whole = f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}] over norms {first:.2g} to {last:.2g}"
        return f"{whole}, {self.late[0]:.2f} [{self.late[1]:.2f}, {self.late[2]:.2f}] over the later half"


def _problem(bumps: float) -> tuple[Problem, Stream, Samples]:
    """A quadratic problem, its endless stream, and its noise-free twin; `bumps` makes ``F`` nonconvex."""
    base = quadratic(3, dx=2, dy=1, train=16, test=16, condition=1.0, noise=(0.5, 0.5))
    truth = base.truth

    def upper(x, y, xi, eta):
        return base.problem.upper(x, y, xi, eta) + bumps * jnp.sum(jnp.cos(3 * x))

    def draw(key, size):
        for_contexts, for_noise = jax.random.split(key)
        xi = truth.contexts.sample(for_contexts, size)
        noise = 0.5 * jax.random.normal(for_noise, (2, size, 1))
        means = {"upper": jax.vmap(truth.target)(xi), "lower": jax.vmap(truth.offset)(xi)}
        return Samples(xi, {"upper": means["upper"] + noise[0], "lower": means["lower"] + noise[1]})

    problem = Problem(upper, base.problem.lower, base.problem.x0, base.problem.y0, base.problem.domain)
    nodes, weights = truth.contexts.quadrature(64)
    means = {"upper": jax.vmap(truth.target)(nodes), "lower": jax.vmap(truth.offset)(nodes)}
    return problem, Stream(draw), Samples(nodes, means, weights)


def _gradient_norms(xs: np.ndarray, bumps: float, basis: Basis) -> np.ndarray:
    """The norm of the population gradient at many points: affine in ``x``, but for the bumps."""
    problem, _, twin = _problem(0.0)
    plain = reduce_study(Study.of(problem, twin), basis)
    at = Expansions(plain.ordinary())
    gradient = lambda x: solve_at(at, x, at.table(plain.W0), _LOWER_LEFT).gradient
    constant = gradient(np.zeros(2))
    matrix = np.stack([gradient(unit) - constant for unit in np.eye(2)])
    return np.linalg.norm(xs @ matrix + constant - 3 * bumps * np.sin(3 * xs), axis=-1)


def slope(kind: type[Stochastic], bumps: float, power: float, momentum: Any, steps: int) -> Slope:
    """Samples against the norm of the true gradient, with steps that fade like ``k ** -power``."""
    problem, stream, _ = _problem(bumps)
    basis = Orthonormal(Chebyshev(3))
    reduced = reduce_study(Study.of(problem, stream), basis)
    fade = lambda value: PolynomialDecay(value, power, 30.0)
    scales = measure(reduced, jax.random.key(1), BATCH).scales
    inner, outer = float(scales.inner), float(scales.outer(0.5))
    settings = {"inner": fade(inner), "linear": fade(inner), "outer": fade(outer), "batch": BATCH}
    solver = kind(**settings, **({"momentum": momentum, "radius": 100.0} if momentum is not None else {}))

    def one(key):
        def onward(state, _):
            state, _ = advance(solver, reduced, state, _EVERY)
            return state, state.x

        state, xs = jax.lax.scan(onward, solver.init(reduced, key, steps), None, length=steps // _EVERY)
        return xs, state.ledger

    xs, ledgers = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(jax.random.key(0), SEEDS))
    spent = _samples(jax.tree.map(lambda a: a[0], ledgers)) / steps
    sizes = _gradient_norms(np.asarray(xs), bumps, basis)
    edges = np.unique(np.geomspace(_FIRST, steps, 24).astype(int) // _EVERY)  # norms are averaged between these times
    windows = list(itertools.pairwise(edges))
    samples = np.array([spent * _EVERY * (left + right) / 2 for left, right in windows])
    squares = np.array([[np.mean(row[left:right] ** 2) for left, right in windows] for row in sizes])

    def fit(seeds, begin=0):
        norm = np.sqrt(np.mean(squares[seeds], axis=0))
        return np.polyfit(np.log(norm[begin:]), np.log(samples[begin:]), 1)[0], norm

    def bounded(begin):
        rng = np.random.default_rng(0)
        again = [fit(rng.integers(0, SEEDS, SEEDS), begin)[0] for _ in range(_RESAMPLINGS)]
        return float(fit(np.arange(SEEDS), begin)[0]), *(float(q) for q in np.quantile(again, [0.025, 0.975]))

    _, norm = fit(np.arange(SEEDS))
    ends = lambda table: (float(table[0]), float(table[-1]))
    return Slope(*bounded(0), bounded(len(samples) // 2), ends(norm), ends(samples))  # pyright: ignore[reportCallIssue]


def _samples(ledger: Ledger) -> int:
    return sum(kind["samples"] for kind in ledger.totals().values())


def _until(reduced: Bilevel, best: Array, share: float = 0.01) -> int | None:
    """Samples SOBA takes at its defaults until `share` of the gap is left, not counting those for its step sizes."""
    solver, at = SOBA(), Expansions(reduced)
    value = lambda x: solve_at(at, flattened(x), at.table(reduced.W0), _LOWER_LEFT).value
    first, lowest = value(reduced.x0), value(best)
    state = solver.init(reduced, jax.random.key(1), _MOST_STEPS)
    measuring = _samples(state.ledger)
    while bool(state.clock.running):
        state, _ = advance(solver, reduced, state, 20)
        if (value(state.x) - lowest) / (first - lowest) < share:
            return _samples(state.ledger) - measuring
    return None


def conditioning(sizes: tuple[int, ...] = (2, 3, 4, 5, 6)) -> list[dict[str, Any]]:
    """The same span in three bases: ``m_Phi``, ``M_Phi``, and the samples until 1% of the gap."""
    rows = []
    instance = quadratic(0, dx=2, dy=1, train=1024, test=10, condition=1.0)
    for n in sizes:
        kinds = {"Orthonormal": Orthonormal(Chebyshev(n)), "Chebyshev": Chebyshev(n), "Monomial": Monomial(n)}
        for name, basis in kinds.items():
            reduced = reduce_study(Study.of(instance.problem, instance.train), basis)
            phi = np.asarray(reduced.lower_pool.features)
            least = float(min(1.0, np.linalg.eigvalsh(phi.T @ phi / len(phi))[0]))
            largest = float(max(1.0, np.linalg.norm(phi, axis=1).max()))
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
    slopes = {name: Slope(**found) for name, found in measured["slopes"].items()}
    power, error = measured["growth"]
    words = "; ".join(f"{name}: slope {found.words()}" for name, found in slopes.items())
    calm = all(found.low >= -3 and found.late[2] >= -3 for found in slopes.values())
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
