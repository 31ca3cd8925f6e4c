"""The inverse experiment: road capacities from noisy flows, 50 instances, several bases, ``StocBiO`` and ``Newton``.

Printed in the paper: 1000 training and 1000 test samples, ``K = 10`` factors of scale ``s = 1e-3``, averages over the
last tenth of a run, the grid of step sizes, 50 instances. Not printed, and chosen here: noise of standard deviation
0.05, batches of 64, the number of steps, capacities kept in [0.05, 3] from a start at 0.5, Fourier on half a period,
polynomials on [-1, 1]; an ablation varies what matters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ...gallery import Instance, two_edge_traffic
from ...iteration import PolynomialDecay
from ...problem import Study
from ...reduction import Reduced, reduce_study
from ...solvers import FdeHBO, Newton
from ...sweep import How, Pool, Run, Task, Trials, solve_all
from ..lab import Budget, Judged, Lab, Method, Tell
from ..tuning import Grid, SearchRung
from . import complexity

CONTEXTS = np.linspace(0.0, 1.0, 201)

_DEFAULT = Budget(
    instances=50,
    steps=2000,
    chunk=50,
    rungs=(SearchRung(24, 2, 100), SearchRung(6, 4, 400), SearchRung(1, 8, 1000)),
    grid=Grid(),
    polynomials=(3, 5, 10, 20),
    partitions=(3, 5, 10, 20, 50, 100),
    ablation=20,
    complexity=2**15,
)

INVERSE_BUDGETS = {
    "quick": replace(
        _DEFAULT,
        instances=8,
        steps=400,
        rungs=(SearchRung(3, 2, 100), SearchRung(1, 6, 400)),
        grid=Grid((1e-3, 1e-2), (1e-2, 1e-1, 1.0), (10,)),
        polynomials=(5, 10),
        partitions=(5, 10, 50),
        ablation=0,
        complexity=0,
        candidates=(How(),),
    ),
    "default": _DEFAULT,
    "full": replace(
        _DEFAULT,
        steps=5000,
        rungs=(SearchRung(40, 4, 150), SearchRung(8, 8, 500), SearchRung(1, 16, 1500)),
        ablation=0,
        complexity=2**17,
    ),
}


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


def _reduced(method: Method, seed: int) -> Reduced:
    """The reduced problem of an instance, in the form its solver works on."""
    one = instance(seed, method.noise)
    reduced = reduce_study(Study.of(one.problem, one.train), method.basis)
    return Newton().prepare(reduced) if method.solver == "Newton" else reduced


class _Known(eqx.Module):
    """What an instance is judged by."""

    truth: Any
    test: Any


@eqx.filter_jit
def _judge(known: Pool, features: jax.Array, grid: jax.Array, which: jax.Array, xs: jax.Array, Ws: jax.Array):
    """Losses with exact flows on the test samples, errors of policy and capacities, flows over a grid of demands."""

    def one(item):
        i, x, W = item
        judge = known[i]
        exact = judge.truth.y(x, judge.test.xi)
        distance = jnp.linalg.norm(exact - judge.test.eta, axis=1)
        gap = jnp.sum((exact - features[i] @ W) ** 2, axis=1)
        return {
            "loss": jnp.mean(distance),
            "policy_error": jnp.mean(gap),
            "x_error": jnp.sum((x - judge.truth.x) ** 2),
            "policy": grid @ W,
            "exact": judge.truth.y(x, jnp.asarray(CONTEXTS)),
        }

    return jax.lax.map(one, (which, xs, Ws))


class Inverse(Lab):
    """Two-edge networks."""

    name = "inverse"
    scale = 1e-3
    shuffle = True

    def plan(self):
        table = self.budget.table()
        plan = [(Method(s, *row), self.budget.instances) for s in ("Newton", "StocBiO") for row in table]
        return plan + [(method, self.budget.ablation) for method in self.variants()]

    def variants(self) -> list[Method]:
        """The ablation: one thing changed at a time."""
        if not self.budget.ablation:
            return []
        exact = [Method("Newton", "Chebyshev", 5, noise=noise) for noise in (0.01, 0.02, 0.1)]
        exact += [Method("Newton", "Fourier", N, period=1.0) for N in (5, 10)]
        usual = Method("StocBiO", "Chebyshev", 5)
        changes: tuple[dict[str, Any], ...] = ({"batch": 16}, {"batch": 256}, {"terms": 200}, {"series": "product"})
        return exact + [replace(usual, **change) for change in changes]

    def pool(self, method, seeds):
        return Pool.of([_reduced(method, seeds[k % len(seeds)]).ordinary() for k in range(self.budget.width)])

    def held(self, method):
        return 2 + 2 * method.N

    def judge(self, method, seeds, which, bundle, final):
        return self._judged(method, seeds, which, bundle.states.average.x, bundle.states.average.W)

    def _judged(self, method: Method, seeds: Sequence[int], which: Any, xs: Any, Ws: Any) -> Judged:
        table = [instance(seed, method.noise) for seed in seeds]
        fitted = reduce_study(Study.of(table[0].problem, table[0].train), method.basis).basis
        known = Pool.of([_Known(one.truth, one.test) for one in table])
        features = jnp.stack([fitted(one.test.xi) for one in table])
        found = _judge(known, features, fitted(jnp.asarray(CONTEXTS)), jnp.asarray(which), xs, Ws)
        found = {name: np.asarray(value) for name, value in found.items()}
        reference = np.asarray([_reference_loss(seed, method.noise) for seed in seeds])[np.asarray(which)]
        numbers = {name: found[name] for name in ("loss", "policy_error", "x_error")} | {"loss_true": reference}
        curves = {name: found[name].astype(np.float32) for name in ("policy", "exact")}
        return Judged(numbers, curves, found["loss"] / reference)

    def solve(self, method, count, tell):
        return super().solve(method, count, tell) if method.solver == "StocBiO" else self._newton(method, count, tell)

    def _newton(self, method: Method, count: int, tell: Tell) -> list[Run]:
        """Whitening may leave a different number of functions on each instance: bundles of equal shape."""
        table = [_reduced(method, seed) for seed in range(count)]
        ranks = [len(reduced.W0) for reduced in table]
        found: dict[int, Run] = {}
        for rank in sorted(set(ranks)):
            rows = [k for k, r in enumerate(ranks) if r == rank]
            pool = Pool.of([table[k].ordinary() for k in rows])
            trials = Trials(jnp.arange(len(rows)), jax.random.split(jax.random.key(0), len(rows)), {})
            how = self.how(Newton(), pool, trials)
            bundle = solve_all(Newton(), pool, trials, Newton.default_steps, Newton.default_steps, how)
            Ws = jnp.stack([table[k].restore(bundle.states.W[i]) for i, k in enumerate(rows)])
            judged = self._judged(method, rows, np.arange(len(rows)), bundle.states.x, Ws)
            found |= {k: self.run(method, k, i, bundle, judged, False, {"rank": rank}) for i, k in enumerate(rows)}
            tell(len(found) / count)
        return [found[k] for k in range(count)]

    def extra(self) -> Iterator[Task]:
        """What runs are held against: the loss at the exact-lower-level optimum of the training sample."""
        plan = self.plan()
        for noise in dict.fromkeys(method.noise for method, _ in plan):
            count = max(count for method, count in plan if method.noise == noise)
            specs = [self.reference_spec(noise, seed) for seed in range(count)]
            yield Task(f"optima, noise {noise}", specs, lambda tell, n=noise, c=count: self._references(n, c, tell))

    def last(self) -> Iterator[Task]:
        """The sample complexity of claim T2, on problems of its own."""
        if self.budget.complexity:
            yield Task("sample complexity", [self.complexity_spec()], self._complexity)

    def complexity_spec(self) -> dict[str, Any]:
        return self.identity() | {"kind": "complexity", "steps": self.budget.complexity, "fits": 3}

    def _complexity(self, tell: Tell) -> list[Run]:
        slopes = {}
        for label, bumps in (("convex", 0.0), ("nonconvex", 0.4)):
            momentum = PolynomialDecay(1.0, 2 / 3, 1.0)
            slopes[label] = asdict(complexity.slope(FdeHBO, bumps, 1 / 3, momentum, self.budget.complexity))
            tell(0.3 * len(slopes))
        rows = complexity.conditioning()
        reached = all(row["samples"] is not None for row in rows)
        result = {"slopes": slopes, "growth": complexity.growth(rows), "reached": reached, "rows": rows}
        return [Run(self.complexity_spec(), result)]

    def reference_spec(self, noise: float, seed: int) -> dict[str, Any]:
        return self.identity() | {"kind": "optimum", "noise": noise, "instance": seed}

    def _references(self, noise: float, count: int, tell: Tell) -> list[Run]:
        found = []
        for seed in range(count):
            one = instance(seed, noise)
            best = one.truth.sample_optimum(one.train)
            result = {"loss_best": float(_loss(one.truth, jnp.asarray(best), one.test)), "x_best": best.tolist()}
            found.append(Run(self.reference_spec(noise, seed), result))
            tell((seed + 1) / count)
        return found
