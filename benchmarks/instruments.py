r"""Instrumental variables as a bilevel problem, with everything left at its default, beside what econometrics has.

The lower level predicts the endogenous regressors from instruments and controls, the upper one fits the outcome to the
prediction. Two parts:

- ``--data``: data sets that come with ``linearmodels``. With the functions of two-stage least squares given:
  coefficients and robust standard errors of both (over-identified, those of ``cobilevel`` hold what the first stage
  adds where the model is not exact; "sandwich" has them by the formula for that case). Then with nothing given.
- ``--simulations 300 --seven 16 --jobs 16``: simulated data sets of 200 to 2000 rows with 1 to 4 instruments, weak to
  strong, every other first stage a straight line; and some with seven contexts, five of them controls. How often the
  95% interval holds the truth, or is withheld; bias and root mean squared error. Needs no ``linearmodels``.

Beside them two-stage least squares (2SLS), limited-information maximum likelihood (LIML) and the jackknife (JIVE), each
with instruments and controls as they are. Single precision of JAX is left as it is.
"""

import importlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

import cobilevel as cb


def upper(x, y, xi, eta):
    return (eta["outcome"] - x @ jnp.concatenate([eta["exogenous"], y])) ** 2 / 2


def lower(x, y, xi, eta):
    return jnp.sum((y - eta["endogenous"]) ** 2) / 2


@dataclass(frozen=True)
class Regression:
    """Rows of data: the outcome on `exogenous` (a constant first) and `endogenous`, with `instruments` excluded."""

    outcome: np.ndarray
    exogenous: np.ndarray
    endogenous: np.ndarray
    instruments: np.ndarray

    @staticmethod
    def of(name: str, outcome: str, endogenous: str, controls: list[str], instruments: list[str]) -> "Regression":
        """From a data set that comes with ``linearmodels``, rows with gaps left out."""
        frame = importlib.import_module(f"linearmodels.datasets.{name}").load()
        frame = frame[[outcome, endogenous, *controls, *instruments]].dropna().astype(float)
        columns = lambda names: frame[names].to_numpy()
        constant = np.ones((len(frame), 1))
        exogenous = np.hstack([constant, columns(controls)])
        return Regression(columns(outcome), exogenous, columns([endogenous]), columns(instruments))

    def context(self) -> tuple[cb.Interval | cb.Box, np.ndarray]:
        """Instruments, then controls; a number where there is but one."""
        table = np.hstack([self.instruments, self.exogenous[:, 1:]])
        if table.shape[1] == 1:
            return cb.Interval(table.min(), table.max()), table[:, 0]
        return cb.Box(table.min(axis=0), table.max(axis=0)), table

    def solve(self, basis=None) -> cb.Solution:
        """The answer of this library; without a basis, one is chosen."""
        domain, xi = self.context()
        size = self.exogenous.shape[1] + self.endogenous.shape[1]
        problem = cb.Problem(upper, lower, np.zeros(size), np.zeros(self.endogenous.shape[1]), domain)
        eta = {"outcome": self.outcome, "exogenous": self.exogenous, "endogenous": self.endogenous}
        return cb.solve(problem, cb.Samples(xi, eta), basis=basis)

    def linear(self) -> cb.Features:
        """The functions that two-stage least squares has: a constant, the instruments, the controls."""
        size = self.instruments.shape[1] + self.exogenous.shape[1]
        return cb.Features(lambda xi: jnp.concatenate([jnp.ones(1, xi.dtype), jnp.atleast_1d(xi)]), size)

    def reference(self):
        """The answer of ``linearmodels``."""
        from linearmodels.iv import IV2SLS  # simulations do without

        return IV2SLS(self.outcome, self.exogenous, self.endogenous, self.instruments).fit(cov_type="robust")

    def sandwich(self) -> np.ndarray:
        """Standard errors of two-stage least squares whether or not all instruments are valid."""
        X, Z = np.hstack([self.exogenous, self.endogenous]), np.hstack([self.exogenous, self.instruments])
        n = len(X)
        first = np.linalg.lstsq(Z, X, rcond=None)[0]
        fitted, bread = Z @ first, np.linalg.inv(first.T @ (Z.T @ X) / n)
        e = self.outcome - X @ (bread @ (fitted.T @ self.outcome / n))
        lagrange = Z @ np.linalg.lstsq(Z, e, rcond=None)[0]
        rows = (fitted * e[:, None] + (X - fitted) * lagrange[:, None]) @ bread
        return np.sqrt(np.sum(rows**2, axis=0)) / n


def cubic_splines(z, lo: float, hi: float, pieces: int):
    """All cubic B-splines on equal pieces but the first (they sum to one, as the constant is), by the recursion."""
    knots = np.concatenate([np.full(3, lo), np.linspace(lo, hi, pieces + 1), np.full(3, hi)])
    last = np.flatnonzero(knots < hi)[-1]
    found = [
        jnp.where((a <= z) & ((z < b) | ((k == last) & (z <= b))), 1.0, 0.0).astype(z.dtype)
        for k, (a, b) in enumerate(pairwise(knots))
    ]
    for degree in (1, 2, 3):
        rising = [_share(z - knots[k], knots[k + degree] - knots[k]) for k in range(len(knots) - degree)]
        found = [rising[k] * found[k] + (1 - rising[k + 1]) * found[k + 1] for k in range(len(found) - 1)]
    return jnp.stack(found[1:], axis=-1)


def _share(part, whole: float):
    return part / whole if whole > 0 else part * 0


def linear_first_stage(seed: int = 0, n: int = 1000, controls: int = 0, strength: float = 0.7) -> Regression:
    """Simulated: one continuous instrument that moves the regressor linearly, confounded with the outcome."""
    rng = np.random.default_rng(seed)
    z, u, v = rng.uniform(-1, 1, n), rng.normal(size=n), rng.normal(size=n)
    exogenous = np.hstack([np.ones((n, 1)), rng.normal(size=(n, controls))])
    t = strength * z + u + 0.3 * exogenous[:, 1:].sum(axis=1)
    outcome = 1 + 0.5 * t + 0.8 * u + v + 0.2 * exogenous[:, 1:].sum(axis=1)
    return Regression(outcome, exogenous, t[:, None], z[:, None])


CARD = ("card", "lwage", "educ", ["exper", "expersq", "black", "south", "smsa"], ["nearc4"])
FATHER = ("mroz", "lwage", "educ", ["exper", "expersq"], ["fatheduc"])
MOTHER = ("mroz", "lwage", "educ", ["exper", "expersq"], ["motheduc"])
PARENTS = ("mroz", "lwage", "educ", ["exper", "expersq"], ["fatheduc", "motheduc"])
DRUGS = ("meps", "ldrugexp", "hi_empunion", ["totchr", "age", "linc", "blhisp"], ["ssiratio"])
ALONE = {  # one instrument, no controls
    "mroz: fatheduc": ("mroz", "lwage", "educ", [], ["fatheduc"]),
    "mroz: motheduc": ("mroz", "lwage", "educ", [], ["motheduc"]),
    "wage: sibs": ("wage", "lwage", "educ", [], ["sibs"]),
    "wage: feduc": ("wage", "lwage", "educ", [], ["feduc"]),
    "wage: meduc": ("wage", "lwage", "educ", [], ["meduc"]),
    "card: nearc4": ("card", "lwage", "educ", [], ["nearc4"]),
    "meps: ssiratio": ("meps", "ldrugexp", "hi_empunion", [], ["ssiratio"]),
}


def with_splines(data: Regression, pieces: int) -> tuple[cb.Features, Regression]:
    """The instrument, the first entry of the context, through cubic splines: a basis, and the same columns."""
    z = data.instruments[:, 0]
    lo, hi = float(z.min()), float(z.max())
    constant = lambda xi: jnp.ones(1, xi.dtype)
    features = lambda xi: jnp.concatenate([constant(xi), xi[1:], cubic_splines(xi[0], lo, hi, pieces)])
    columns = _in_double(lambda: np.asarray(cubic_splines(jnp.asarray(z), lo, hi, pieces)))
    size = data.exogenous.shape[1] + columns.shape[1]
    return cb.Features(features, size), Regression(data.outcome, data.exogenous, data.endogenous, columns)


def _in_double(call):
    from cobilevel.ground.precision import double

    with double():
        return call()


@dataclass(frozen=True)
class Row:
    """Largest relative differences over coefficients: of these, and of standard errors by both formulas."""

    coefficients: float
    errors: float
    sandwich: float
    seconds: float
    solution: cb.Solution


def compare(data: Regression, basis, columns: Regression | None = None) -> Row:
    """This library with a given basis, against two-stage least squares with `columns`, or the data's own."""
    began = time.perf_counter()
    solution = data.solve(basis)
    error, x = np.asarray(solution.standard_error), np.asarray(solution.full_parts()[0])
    seconds, told = time.perf_counter() - began, columns or data
    fit = told.reference()
    apart = lambda a, b: float(np.max(np.abs(np.asarray(a) / np.asarray(b) - 1)))
    return Row(apart(x, fit.params), apart(error, fit.std_errors), apart(error, told.sandwich()), seconds, solution)


# -- what econometrics has


class Estimate(NamedTuple):
    """Of the coefficient of the first endogenous regressor, with its standard error."""

    value: float
    error: float


def k_class(data: Regression, kappa: float | None = 1.0) -> Estimate:
    """Two-stage least squares; without a `kappa`, limited-information maximum likelihood. Robust errors."""
    X, Z = np.hstack([data.exogenous, data.endogenous]), np.hstack([data.exogenous, data.instruments])
    beyond = lambda table, columns: columns - table @ np.linalg.lstsq(table, columns, rcond=None)[0]
    if kappa is None:
        both = np.column_stack([data.outcome, data.endogenous])
        within, total = (part.T @ part for part in (beyond(Z, both), beyond(data.exogenous, both)))
        kappa = float(np.min(np.linalg.eigvals(np.linalg.solve(within, total)).real))
    fitted = X - kappa * beyond(Z, X)
    return _sandwich_of(fitted, X, data.outcome, len(data.exogenous[0]))


def jackknife(data: Regression) -> Estimate:
    """The regressors at each row predicted from all others (JIVE)."""
    X, Z = np.hstack([data.exogenous, data.endogenous]), np.hstack([data.exogenous, data.instruments])
    q = np.linalg.qr(Z)[0]
    leverage = np.sum(q**2, axis=1)[:, None]
    return _sandwich_of((q @ (q.T @ X) - leverage * X) / (1 - leverage), X, data.outcome, len(data.exogenous[0]))


def _sandwich_of(fitted: np.ndarray, X: np.ndarray, outcome: np.ndarray, place: int) -> Estimate:
    bread = np.linalg.inv(fitted.T @ X)
    x = bread @ (fitted.T @ outcome)
    rows = (fitted * (outcome - X @ x)[:, None]) @ bread.T
    return Estimate(float(x[place]), float(np.sqrt(np.sum(rows[:, place] ** 2))))


BESIDE: dict[str, Callable[[Regression], Estimate]] = {
    "2SLS": k_class,
    "LIML": lambda data: k_class(data, None),
    "JIVE": jackknife,
}


# -- simulated data sets

TRUTH, ROWS, STRENGTHS = 1.0, (200, 500, 1000, 2000), (2.0, 8.0, 30.0, 120.0)


@dataclass(frozen=True)
class Case:
    """One simulated data set; `strength`: of the first stage, its F in the population."""

    seed: int
    linear: bool
    n: int
    instruments: int
    strength: float
    controls: int = 0

    @staticmethod
    def all(simulations: int, seven: int, seed: int = 0) -> "list[Case]":
        """Linear and not in turn, then by rows, instruments and strength, so that any number of them is a mixture."""
        few = [
            Case(seed + k, k % 2 == 0, ROWS[k // 2 % 4], 1 + k // 8 % 4, STRENGTHS[(k // 2 + k // 32) % 4])
            for k in range(simulations)
        ]
        return few + [Case(seed + k, k % 2 == 0, 4000, 2, STRENGTHS[1 + k // 2 % 3], 5) for k in range(seven)]

    def draw(self) -> Regression:
        """The data: errors of the two equations are correlated, by 0.3 to 0.9."""
        rng = np.random.default_rng([self.seed, self.n, self.instruments, self.controls])
        n, k = self.n, self.instruments
        together = rng.uniform(0.3, 0.9)
        z, w = (rng.normal if self.seed % 3 else rng.uniform)(-1, 1, (n, k)), rng.normal(size=(n, self.controls))
        v = rng.normal(size=n)
        e = together * v + np.sqrt(1 - together**2) * rng.normal(size=n)
        parts = z if self.linear else np.stack([_bent(z[:, j], int(rng.integers(4))) for j in range(k)], axis=1)
        h = parts @ rng.uniform(0.5, 1.5, k)
        if not self.linear and k > 1:
            h = h + z[:, 0] * z[:, 1] / 2
        h = (h - h.mean()) / h.std() * np.sqrt(self.strength * k / n)
        t = h + v + 0.3 * w.sum(axis=1)
        outcome = 1 + TRUTH * t + e + 0.2 * w.sum(axis=1)
        return Regression(outcome, np.hstack([np.ones((n, 1)), w]), t[:, None], z)


def _bent(z: np.ndarray, kind: int) -> np.ndarray:
    """A function of one instrument that is not a straight line, of about unit size."""
    return [np.sin(2 * z), z**2 - np.mean(z**2), np.tanh(4 * z), np.exp(z) / 2][kind]


@dataclass(frozen=True)
class Outcome:
    """What came of a case: `estimates` with their standard errors by name, ours first, infinite where it is withheld;
    `interval`: ours, and `middle`: the estimate less the bias it states."""

    case: Case
    estimates: dict[str, Estimate]
    middle: float
    interval: tuple[float, float]
    functions: int
    note: str
    seconds: float


def _answer(data: Regression) -> tuple[Estimate, float, tuple[float, float], int, str]:
    """Of the default: the estimate, that less its bias, the interval, the number of functions, what is said beside."""
    solution = data.solve()
    known, j = solution.uncertainty, data.exogenous.shape[1]
    error = float(known.error[j]) if solution.converged else np.inf
    error = error if np.isfinite(error) else np.inf
    note = known.notes[j] or (known.why_not if not np.isfinite(error) else "")
    note = note if solution.converged else f"not converged. {note}"
    lo, hi = known.interval[:, j].tolist()
    middle = float(known.x[j] - (known.bias[j] if np.isfinite(known.bias[j]) else 0))
    return Estimate(float(known.x[j]), error), middle, (lo, hi), solution.basis.size, note


def simulate(case: Case) -> Outcome:
    """One data set, solved."""
    began = time.perf_counter()
    data = case.draw()
    own, middle, interval, functions, note = _answer(data)
    estimates = {"default": own} | {name: beside(data) for name, beside in BESIDE.items()}
    return Outcome(case, estimates, middle, interval, functions, note, time.perf_counter() - began)


def outcomes(cases: list[Case], jobs: int) -> Iterator[Outcome]:
    """All of them, in as many processes, as they come."""
    if jobs == 1:
        yield from map(simulate, cases)
        return
    one = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    os.environ.update(one | {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "") + " --xla_cpu_multi_thread_eigen=false"})
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(simulate, cases)


def summary(found: list[Outcome]) -> str:
    """A table: groups of cases down, methods across."""
    groups: dict[str, list[Outcome]] = defaultdict(list)
    for one in found:
        case, stage = one.case, "linear" if one.case.linear else "bent"
        if case.controls:
            groups[f"seven contexts, {stage}"].append(one)
            continue
        for name in ("all", stage, f"{stage}, F = {case.strength:.0f}", f"{stage}, {case.instruments} instruments"):
            groups[name].append(one)
    ways, three = ("x", "middle", *BESIDE), [f"{way:>5}" for way in BESIDE]
    both = " | ".join(" ".join(f"{way:>7}" for way in (f"{what}: x", *ways[1:])) for what in ("bias", "rms"))
    lines = [
        "Where the interval is not withheld: how often it holds the truth; bias and root mean squared error of x, of",
        "x less the bias it states (middle), and of the others on the same data.",
        f"{'':22} {'n':>4} {'held back':>9}  {'covered':>7} {' '.join(three)} | {both} | functions",
    ]
    for name in sorted(groups, key=lambda name: (name.startswith("seven"), name != "all", name)):
        lines.append(_line(name, groups[name]))
    return "\n".join(lines)


def _line(name: str, group: list[Outcome]) -> str:
    said = [one for one in group if np.isfinite(one.estimates["default"].error)]
    start = f"{name:22} {len(group):4} {len(group) - len(said):9}"
    if not said:
        return start
    middle = np.array([one.middle for one in said]) - TRUTH
    off = {way: np.array([one.estimates[way].value for one in said]) - TRUTH for way in ("default", *BESIDE)}
    wide = {way: np.array([one.estimates[way].error for one in said]) for way in BESIDE}
    covered = [np.mean([one.interval[0] <= TRUTH <= one.interval[1] for one in said])]
    covered += [np.mean(np.abs(off[way]) <= 1.96 * wide[way]) for way in BESIDE]
    columns = [off["default"], middle, *(off[way] for way in BESIDE)]
    bias, rms = ([f"{size(c):7.3f}" for c in columns] for size in (np.mean, lambda c: np.sqrt(np.mean(c**2))))
    shares = " ".join(f"{100 * share:4.0f}%" for share in covered)
    sizes = np.quantile([one.functions for one in said], (0.5, 1.0))
    return f"{start}     {shares} | {' '.join(bias)} | {' '.join(rms)} | {sizes[0]:.0f} to {sizes[1]:.0f}"


def row_of(one: Outcome) -> str:
    """One line on a data set."""
    case = one.case
    words = [f"{case.seed:4} {'line' if case.linear else 'bent'} n={case.n} k={case.instruments}+{case.controls}"]
    lo, hi = one.interval
    words.append(f"F={case.strength:3.0f} N={one.functions:3} {one.middle:7.3f} [{lo:6.3f}, {hi:6.3f}]")
    words += [f"{way} {e.value:7.3f} +- {e.error:6.3f}" for way, e in one.estimates.items()]
    return f"{'  '.join(words)}  {one.seconds:5.1f} s  {one.note}"


# -- the data sets of linearmodels

WAGES = ("wage", "lwage", "educ", ["exper", "tenure", "married"], ["feduc", "meduc", "sibs"])


def show_data() -> None:
    """With the functions of two-stage least squares given, then with nothing given."""
    print(f"{'given features':32} {'n':>6} {'coefficients':>12} {'linearmodels':>12} {'sandwich':>9} {'seconds':>7}")
    for title, words in (
        ("card: nearc4", CARD),
        ("mroz: fatheduc", FATHER),
        ("mroz: motheduc", MOTHER),
        ("mroz: both (over-identified)", PARENTS),
        ("meps: ssiratio", DRUGS),
    ):
        data = Regression.of(*words)
        show(title, data, compare(data, data.linear()))
    data = Regression.of(*DRUGS)
    show("meps: 6 splines (over-identified)", data, compare(data, *with_splines(data, 4)))
    print()
    ways = " ".join(f"{way:>17}" for way in ("default", *BESIDE))
    print(f"{'nothing given':32} {'n':>6} {ways} functions  remark")
    named = {"card": CARD, "mroz: fatheduc": FATHER, "mroz: motheduc": MOTHER, "mroz: both": PARENTS}
    named |= {"wage: feduc, meduc, sibs": WAGES, "meps: ssiratio": DRUGS}
    named |= {f"{name}, no controls": words for name, words in ALONE.items()}
    for title, words in named.items():
        data = Regression.of(*words)
        own, _, (lo, hi), functions, note = _answer(data)
        told = [own, *(beside(data) for beside in BESIDE.values())]
        cells = " ".join(f"{one.value:8.4f} ({one.error:6.4f})" for one in told)
        print(f"{title:32} {len(data.outcome):6} {cells} {functions:9}  [{lo:.3f}, {hi:.3f}] {note}", flush=True)


def show(title: str, data: Regression, row: Row) -> None:
    """A line of the first table."""
    n = len(data.outcome)
    print(f"{title:32} {n:6} {row.coefficients:12.1e} {row.errors:12.1e} {row.sandwich:9.1e} {row.seconds:7.1f}")


def main() -> None:
    import harness  # tests import this file from elsewhere

    given = harness.arguments(
        __doc__,
        ("--data", False, "the data sets of linearmodels"),
        ("--simulations", 0, "so many simulated data sets"),
        ("--seven", 0, "so many with seven contexts"),
        ("--seed", 0, "of the first of them"),
        ("--jobs", 1, "processes"),
        ("--rows", False, "a line on each data set"),
        ("--out", Path, "where to write all of them, as JSON"),
    )
    if given.data or not (given.simulations or given.seven):
        show_data()
    found = []
    for one in outcomes(Case.all(given.simulations, given.seven, given.seed), given.jobs):
        found.append(one)
        if given.rows:
            print(row_of(one), flush=True)
    if found:
        print(summary(found))
    if given.out:
        given.out.write_text(json.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    main()
