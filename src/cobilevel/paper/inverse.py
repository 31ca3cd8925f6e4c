"""The inverse experiment: road capacities from noisy flows, 50 instances, several bases, ``StocBiO`` and ``Newton``.

Printed in the paper: 1000 training and 1000 test samples, ``K = 10`` factors of scale ``s = 1e-3``, averages over the
last tenth of a run, the grid of step sizes, 50 instances. Not printed, and chosen here: noise of standard deviation
0.05, batches of 64, the number of steps, capacities kept in [0.05, 3] from a start at 0.5, Fourier on half a period,
polynomials on [-1, 1]; an ablation varies what matters.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..gallery import Instance, two_edge_traffic
from ..iteration import PolynomialDecay
from ..solvers import FdeHBO, Newton
from ..study import Study
from ..sweep import How, Pool, Run, Task, solve_grid
from .lab import Judged, Lab, Tell
from .methods import BARE, Budget, Grid, Method, SearchRung
from .theory import conditioning, growth, slope

CONTEXTS = np.linspace(0.0, 1.0, 201)  # demands at which policies are kept

_SIZES = (3, 5, 10, 20, 50, 100)
_DEFAULT = Budget(
    instances=50, steps=2000, chunk=50, grid=Grid(), bases=(3, 5, 10, 20), cells=_SIZES, bare=(5, 50), reported=8,
    rungs=(SearchRung(24, 2, 100), SearchRung(3, 4, 400), SearchRung(1, 8, 2000)), ablation=20, complexity=2**15,
)  # fmt: skip
INVERSE_BUDGETS = {
    "quick": replace(
        _DEFAULT, instances=8, steps=400, grid=Grid((1e-3, 1e-2), (1e-2, 1e-1, 1.0), (10,)),
        rungs=(SearchRung(2, 2, 100), SearchRung(1, 6, 400)), bases=(5, 10), cells=(5, 10, 50), bare=(5,),
        reported=6, ablation=0, complexity=0, together=How(),
    ),
    "default": _DEFAULT,
    "full": replace(
        _DEFAULT, steps=5000, rungs=(SearchRung(24, 4, 150), SearchRung(3, 8, 500), SearchRung(1, 16, 5000)),
        bases=_SIZES, cells=_SIZES, bare=_SIZES, reported=50, ablation=0, complexity=2**17,
        further=(SearchRung(2, 8, 1000), SearchRung(1, 16, 5000)), extended=50,
    ),
}  # fmt: skip


@cache
def instance(seed: int, noise: float) -> Instance:
    """An instance of the gallery, made once."""
    return two_edge_traffic(seed, noise)


@cache
def _reference_loss(seed: int, noise: float) -> float:
    one = instance(seed, noise)
    return float(_loss(one.truth, one.truth.x, one.test))


@eqx.filter_jit
def _loss(truth: Any, x: jax.Array, samples: Any) -> jax.Array:
    return truth.loss(x, samples)


@eqx.filter_jit
def _judge(known: Pool, features: jax.Array, grid: jax.Array, which: jax.Array, xs: jax.Array, Ws: jax.Array):
    """Losses with exact flows on the test samples, errors of policy and capacities, flows over a grid of demands."""

    def one(item):
        i, x, W = item
        truth, test = known[i]
        exact = truth.y(x, test.xi)
        return {
            "loss": jnp.mean(jnp.linalg.norm(exact - test.eta, axis=1)),
            "policy_error": jnp.mean(jnp.sum((exact - features[i] @ W) ** 2, axis=1)),
            "x_error": jnp.sum((x - truth.x) ** 2),
            "policy": grid @ W,
            "exact": truth.y(x, jnp.asarray(CONTEXTS)),
        }

    return jax.lax.map(one, (which, xs, Ws))


class Inverse(Lab):
    """Two-edge networks."""

    name = "inverse"
    scale = 1e-3
    shuffle = True

    def plan(self):
        table = self.budget.table()
        plan = [(Method("Newton", *row), self.budget.instances) for row in table if row[0] != BARE]  # alike for Newton
        plan += [(Method("StocBiO", *row), self.budget.instances) for row in table]
        return plan + [(method, self.budget.ablation) for method in self.variants()]

    def variants(self):
        if not self.budget.ablation:
            return []
        exact = [Method("Newton", "Chebyshev", 5, noise=noise) for noise in (0.01, 0.02, 0.1)]
        exact += [Method("Newton", "Fourier", N, period=1.0) for N in (5, 10)]
        usual = Method("StocBiO", "Chebyshev", 5)
        changes: tuple[dict[str, Any], ...] = ({"batch": 16}, {"batch": 256}, {"terms": 200}, {"series": "product"})
        return exact + [replace(usual, **change) for change in changes]

    def pool(self, method, seeds):
        budget = self.budget
        most = max(budget.instances, budget.ablation, *(rung.instances for rung in budget.rungs))
        table = [instance(seeds[k % len(seeds)], method.noise) for k in range(most)]  # one size, so one program
        return Pool.of([method.reduced(Study.of(one.problem, one.train)).ordinary() for one in table])

    def held(self, method):
        return 2 + 2 * method.N

    def judge(self, method, seeds, which, bundle, final):
        return self._judged(method, seeds, which, bundle.states.average.x, bundle.states.average.W)

    def _judged(self, method: Method, seeds: Sequence[int], which: Any, xs: Any, Ws: Any) -> Judged:
        table = [instance(seed, method.noise) for seed in seeds]
        fitted = method.features(Study.of(table[0].problem, table[0].train))
        known = Pool.of([(one.truth, one.test) for one in table])
        features = jnp.stack([fitted(one.test.xi) for one in table])
        errors = _judge(known, features, fitted(jnp.asarray(CONTEXTS)), jnp.asarray(which), xs, Ws)
        errors = {name: np.asarray(value) for name, value in errors.items()}
        reference = np.asarray([_reference_loss(seed, method.noise) for seed in seeds])[np.asarray(which)]
        numbers = {name: errors[name] for name in ("loss", "policy_error", "x_error")} | {"loss_true": reference}
        curves = {name: errors[name].astype(np.float32) for name in ("policy", "exact")}
        return Judged(numbers, curves, errors["loss"] / reference)

    def solve(self, method, count, tuned, tell):
        if method.solver == "StocBiO":
            return super().solve(method, count, tuned, tell)
        clock = time.perf_counter()
        cases = [(one.problem, one.train) for one in (instance(seed, method.noise) for seed in range(count))]
        (solutions,) = solve_grid(cases, [method.basis], Newton(), progress=False)
        xs = jnp.stack([s.x for s in solutions])
        Ws = jnp.stack([s.W for s in solutions]) / method.scale  # an exact answer is the same whatever the scale
        judged = self._judged(method, range(count), np.arange(count), xs, Ws)
        tell(1.0)
        seconds = (time.perf_counter() - clock) / count
        about = lambda s: {
            "rank": s.stats["rank"], "diverged": False, "ended": s.result.name, "steps": int(s.stats["steps"]),
        }  # fmt: skip
        return [self.record(method, k, judged, about(s), seconds) for k, s in enumerate(solutions)]

    def tasks(self):
        """First what runs are compared with, the loss at the exact-lower-level optimum of the training sample; last
        the sample complexity of claim T2, on problems of its own."""
        plan = self.plan()
        for noise in dict.fromkeys(method.noise for method, _ in plan):
            count = max(count for method, count in plan if method.noise == noise)
            specs = [self.reference_spec(noise, seed) for seed in range(count)]
            yield Task(f"optima, noise {noise}", specs, partial(self._references, noise, count))
        yield from super().tasks()
        if self.budget.complexity:
            yield Task("sample complexity", [self.complexity_spec()], self._complexity)

    def reference_spec(self, noise: float, seed: int) -> dict[str, Any]:
        return self.identity() | {"kind": "optimum", "noise": noise, "instance": seed}

    def _references(self, noise: float, count: int, tell: Tell) -> list[Run]:
        runs = []
        for seed in range(count):
            one = instance(seed, noise)
            best = one.truth.sample_optimum(one.train)
            result = {"loss_best": float(_loss(one.truth, jnp.asarray(best), one.test)), "x_best": best.tolist()}
            runs.append(Run(self.reference_spec(noise, seed), result))
            tell((seed + 1) / count)
        return runs

    def complexity_spec(self) -> dict[str, Any]:
        return self.identity() | {"kind": "complexity", "steps": self.budget.complexity, "fits": 3}

    def _complexity(self, tell: Tell) -> list[Run]:
        slopes = {}
        for label, bumps in (("convex", 0.0), ("nonconvex", 0.4)):
            momentum = PolynomialDecay(1.0, 2 / 3, 1.0)
            slopes[label] = asdict(slope(FdeHBO, bumps, 1 / 3, momentum, self.budget.complexity))
            tell(0.3 * len(slopes))
        rows = conditioning()
        reached = all(row["samples"] is not None for row in rows)
        result = {"slopes": slopes, "growth": growth(rows), "reached": reached, "rows": rows}
        return [Run(self.complexity_spec(), result)]
