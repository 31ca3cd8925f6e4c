"""The inverse experiment: road capacities from noisy flows, 50 instances, several bases, ``StocBiO`` and ``Newton``.

Printed in the paper: 1000 training and 1000 test samples, ``K = 10`` factors of scale ``s = 1e-3``, averages over the
last tenth of a run, the grid of step sizes, 50 instances. Not printed, and chosen here: noise of standard deviation
0.05, batches of 64, the number of steps, capacities kept in [0.05, 3] from a start at 0.5, Fourier on half a period,
polynomials on [-1, 1]; an ablation varies what matters. Claims are judged on ``StocBiO``; ``Newton`` on the same
reduced problems shows whether a failure is the solver's or the reduction's.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from ..gallery import Instance, two_edge_traffic
from ..iteration import PolynomialDecay
from ..judge import Estimate, runs_estimate
from ..report import line_part, panel_part, policies_part, rounded, table_part
from ..solvers import FdeHBO, Newton
from ..study import Study
from ..sweep import Run, Task, solve_grid, stacked, taken
from .claims import geometric_mean, median
from .experiment import Experiment, Tell
from .inverse_claims import inverse_verdicts
from .methods import BARE, BASES, HELD_OUT, PER_CELL, REPORTED, Budget, Grid, Method, SearchRung, family_name
from .theory import conditioning, growth, slope, theory

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
        reported=6, ablation=0, complexity=0,
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
def _judge(known: Any, features: jax.Array, grid: jax.Array, which: jax.Array, xs: jax.Array, Ws: jax.Array):
    """Losses with exact flows on the test samples, errors of policy and capacities, flows over a grid of demands."""

    def one(item):
        i, x, W = item
        truth, test = taken(known, i)
        exact = truth.y(x, test.xi)
        return {
            "loss": jnp.mean(jnp.linalg.norm(exact - test.eta, axis=1)),
            "policy_error": jnp.mean(jnp.sum((exact - features[i] @ W) ** 2, axis=1)),
            "x_error": jnp.sum((x - truth.x) ** 2),
            "policy": grid @ W,
            "exact": truth.y(x, jnp.asarray(CONTEXTS)),
        }

    return jax.lax.map(one, (which, xs, Ws))


class Inverse(Experiment):
    """Two-edge networks."""

    name = "inverse"
    title = "Road capacities from observed flows"
    unit = "instance"
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

    def problems(self, method, seeds):
        budget = self.budget
        most = max(budget.instances, budget.ablation, *(rung.instances for rung in budget.rungs))
        some = [instance(seeds[k % len(seeds)], method.noise) for k in range(most)]  # one size, so one program
        return stacked([method.reduced(Study.of(one.problem, one.train)).ordinary() for one in some])

    def held(self, method):
        return 2 + 2 * method.N

    def score(self, numbers):
        return numbers["loss"] / numbers["loss_true"]

    def judge(self, method, seeds, which, xs, Ws, seen, final):
        some = [instance(seed, method.noise) for seed in seeds]
        fitted = method.features(Study.of(some[0].problem, some[0].train))
        features = jnp.stack([fitted(one.test.xi) for one in some])
        known, which = stacked([(one.truth, one.test) for one in some]), jnp.asarray(which)
        errors = _judge(known, features, fitted(jnp.asarray(CONTEXTS)), which, xs, Ws)
        numbers = {name: np.asarray(errors[name]) for name in ("loss", "policy_error", "x_error")}
        numbers["loss_true"] = np.asarray([_reference_loss(seed, method.noise) for seed in seeds])[np.asarray(which)]
        return numbers, {name: np.asarray(errors[name], np.float32) for name in ("policy", "exact")}

    def solve(self, method, count, tuned, tell):
        if method.solver == "StocBiO":
            return super().solve(method, count, tuned, tell)
        clock = time.perf_counter()
        cases = [(one.problem, one.train) for one in (instance(seed, method.noise) for seed in range(count))]
        (solutions,) = solve_grid(cases, [method.basis], Newton(), progress=False)
        xs = jnp.stack([s.x for s in solutions])
        Ws = jnp.stack([s.W for s in solutions]) / method.scale  # an exact answer is the same whatever the scale
        numbers, curves = self.judge(method, range(count), np.arange(count), xs, Ws, {}, True)
        tell(1.0)
        about = [
            {"rank": s.stats["rank"], "diverged": False, "ended": s.result.name, "steps": int(s.stats["steps"])}
            for s in solutions
        ]
        return self.records(method, numbers, curves, about, (time.perf_counter() - clock) / count, tuned)

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
            slopes[label] = slope(FdeHBO, bumps, 1 / 3, momentum, self.budget.complexity)
            tell(0.3 * len(slopes))
        rows = conditioning()
        reached = all(row["samples"] is not None for row in rows)
        result = {"slopes": slopes, "growth": growth(rows), "reached": reached, "rows": rows}
        return [Run(self.complexity_spec(), result)]

    # -- what the finished runs say

    def values(self, method, name, tuned=HELD_OUT):
        """``ratio`` is the loss over F_ref, ``gap`` the loss over that of the exact-lower-level optimum, less 1."""
        if name == "ratio":
            return self.values(method, "loss", tuned) / self.values(method, "loss_true", tuned)
        if name == "gap":
            loss = self.values(method, "loss", tuned)
            return loss / self._best[method.noise][: len(loss)] - 1
        return super().values(method, name, tuned)

    @cached_property
    def _best(self) -> dict[float, np.ndarray]:
        """The losses at the exact-lower-level optima, by noise."""
        best = {}
        for noise in {method.noise for method in self.methods}:
            most = max(count for method, count in self.plan() if method.noise == noise)
            runs = [self.runs.get(self.reference_spec(noise, seed)) for seed in range(most)]
            best[noise] = np.array([run.result["loss_best"] for run in runs])
        return best

    def sizes(self, family: str) -> tuple[int, ...]:
        return self.budget.partitions.get(family, self.budget.bases)

    def summary(self) -> dict[str, Any]:
        """What the page shows. Panels: the paper's Figure 1, with step sizes chosen on the instances shown; with
        others', in medians, and with Newton; errors by context."""
        held_out, newton = "With step sizes from held-out instances", "The same reduced problems solved by Newton"
        panels = [
            *self._three_panels("Figure 1: road capacities", "StocBiO", runs_estimate, "Means", REPORTED),
            *self._three_panels(held_out, "StocBiO", runs_estimate, "Means"),
            *self._three_panels(f"{held_out}, in medians", "StocBiO", median, "Medians"),
            *self._three_panels(newton, "Newton", runs_estimate, "Means"),
            *(self._errors_by_demand(solver) for solver in ("StocBiO", "Newton")),
        ]
        lead = (
            f"Road capacities inferred from noisy flows in {self.budget.instances} random two-edge networks. Every "
            "basis is solved with StocBiO, with the constants the paper prints, and with Newton, which shows what the "
            "reduction gives once the solver's own error is out of the way. Losses are on test samples with exact "
            "flows."
        )
        data = ["samples", "1000 for training, 1000 for testing"]
        parts = {"panels": panels, "tables": self._tables(), "policies": self._policies()}
        return self.page(lead, data, "batches of 64, K = 10, s = 0.001", **parts)

    def _tables(self) -> list[dict[str, Any]]:
        """Every method in numbers, the step sizes that were chosen, the ablation."""
        columns = ["method", "solver", "F / F_ref", "median", "F / best - 1", "median", "Delta_y", "Delta_x",
                   "diverged", "numbers held", "seconds a run"]  # fmt: skip
        rows, ablation, tuned = [], [], []
        for method in self.methods:
            changed, cells = _change(method), self._cells(method)
            if method.usual:
                held = self.finished(method)[0].result["numbers_held"]
                rows.append([method.label, method.solver, *cells, held, f"{self.seconds(method):.2g}"])
            else:
                ablation.append([method.label, method.solver, changed, *cells])
            if method.solver == "StocBiO":
                tuned.append((method.label if method.usual else f"{method.label}, {changed}", method))
        note = (
            "Means over instances with 95% intervals; Delta_y and Delta_x are geometric means. Runs that diverged "
            "count as they stood last. The paper: 16 MB and 10 to 90 minutes a run."
        )
        tables = [
            table_part("methods", "Road capacities: every method", columns, rows, note),
            self.step_sizes(tuned, "ratio"),
        ]
        note = "One thing changed at a time; step sizes searched anew for each."
        columns = ["method", "solver", "changed", *columns[2:9]]
        return tables + [table_part("ablation", "What the paper leaves open", columns, ablation, note)] * bool(ablation)

    def _cells(self, method: Method) -> list[Any]:
        """Losses, errors and divergences of a method, as cells of a table."""
        over, gap = (self.values(method, name) for name in ("ratio", "gap"))
        errors = [float(geometric_mean(self.values(method, name))) for name in ("policy_error", "x_error")]
        losses = [runs_estimate(over).words(4), f"{np.median(over):.4f}", runs_estimate(gap).words(2)]
        diverged = int(self.values(method, "diverged").sum())
        return [*losses, f"{np.median(gap):.2g}", *(f"{error:.2g}" for error in errors), diverged]

    def _policies(self) -> dict[str, Any]:
        """The policies of the first instance, at every second context of the curves: enough for the eye."""
        entries = []
        for method in (method for method in self.methods if method.usual):
            policy, exact = (self.finished(method)[0].curves[name][::2].T for name in ("policy", "exact"))
            known = (family_name(method.family), method.N, method.solver)
            entries.append((*known, policy, exact, np.linalg.norm(policy - exact, axis=0)))
        return policies_part("demand", CONTEXTS[::2], "flow", ["edge 1", "edge 2"], entries)

    def _three_panels(
        self, name: str, solver: str, centre: Callable[[Any], Estimate], word: str, tuned: str = HELD_OUT
    ) -> list[dict[str, Any]]:
        """Loss, lower-level and upper-level error against N, as the paper shows them."""
        note = f"{word} over instances with 95% intervals"
        middle = centre if centre is median else geometric_mean
        more = " Step sizes are the best on these instances." if tuned == REPORTED else ""
        more += " one-hot[N]: stocBiO[N] with indicator functions as they are." if solver == "StocBiO" else ""
        parts = (
            ("ratio", "Loss", "F(x) / F_ref", "linear", centre, f"{note}.{more}"),
            ("policy_error", "Lower-level error", "Delta_y", "log", middle, f"{note}, of logarithms."),
            ("x_error", "Upper-level error", "Delta_x", "log", middle, f"{note}, of logarithms."),
        )
        panels = []
        for quantity, title, label, scale, over, words in parts:
            series = []
            for family in (*BASES, PER_CELL, BARE):
                methods = [Method(solver, family, N) for N in self.sizes(family)]
                methods = [method for method in methods if method in self.methods]
                spread = [over(self.values(method, quantity, tuned)) for method in methods]
                known = family_name(family) if family in BASES else f"{family}[N]"
                series += [line_part(known, [m.N for m in methods], spread)] if methods else []
            lines = [{"label": "F_ref", "y": 1.0}] if quantity == "ratio" else []
            axes, scales = ("N", label), ("log", scale)
            panels.append(panel_part(f"{name}-{quantity}", name, title, axes, scales, series, words, lines))
        return panels

    def _errors_by_demand(self, solver: str, least: float = 1e-30) -> dict[str, Any]:
        """Where each basis errs: geometric means over instances, at equal and at larger memory. The axis is
        logarithmic: squared errors below `least` are drawn there."""
        series = []
        wanted = [(family, 10) for family in (*BASES, PER_CELL)] + [(PER_CELL, 50)]
        for method in (Method(solver, family, N) for family, N in wanted):
            if method in self.methods:
                curves = [run.curves for run in self.finished(method)]
                errors = np.array([np.sum((c["policy"] - c["exact"]) ** 2, axis=1) for c in curves])
                y = rounded(np.exp(np.mean(np.log(np.maximum(errors, least)), axis=0) / 2))
                series.append({"label": method.label, "x": CONTEXTS.tolist(), "y": y, "low": None, "high": None})
        note = "Geometric means over instances. Cells err most at their ends."
        figure, axes, scales = "Error of the flows by demand", ("demand", "error of the flows"), ("linear", "log")
        return panel_part(f"by-demand-{solver}", figure, f"Solved by {solver}", axes, scales, series, note)

    def verdicts(self) -> list[dict[str, Any]]:
        """I1 to I5, T2 where it was measured, and the claims of the theory that need no runs."""
        return inverse_verdicts(self) + theory()


def _change(method: Method) -> str:
    """What is changed in a method of the ablation, in words."""
    usual = Method(method.solver, method.family, method.N)
    names = {"noise": "noise", "period": "Fourier period", "batch": "batch", "series": "series", "terms": "factors K"}
    changed = [f"{words} {getattr(method, k)}" for k, words in names.items() if getattr(method, k) != getattr(usual, k)]
    return ", ".join(changed)
