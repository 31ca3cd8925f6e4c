"""Two-stage least squares as a bilevel problem, against ``linearmodels``: coefficients and robust standard errors.

The lower level predicts the endogenous regressors from instruments and controls, the upper one fits the outcome to the
prediction. Everything is left at its default, single precision of JAX included. Over-identified, the standard errors of
``cobilevel`` hold what the first stage adds where the model is not exact; the column "sandwich" has them by the formula
for that case, and "linearmodels" has those that take the model to be exact.
"""

import importlib
import time
from dataclasses import dataclass
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
from linearmodels.iv import IV2SLS

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
    from cobilevel.precision import double

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


def main() -> None:
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
    print(f"{'basis chosen':20} {'ours':>9} {'error':>8} {'linear IV':>9} {'error':>8} {'apart':>6}  basis")
    cases = {"simulated, linear": linear_first_stage()} | {name: Regression.of(*w) for name, w in ALONE.items()}
    for title, data in cases.items():
        solution, fit = data.solve(), data.reference()
        x, error, own = float(solution.x[-1]), float(fit.std_errors.iloc[-1]), float(solution.standard_error[-1])
        told = float(fit.params.iloc[-1])
        basis = repr(solution.basis.basis)
        print(f"{title:20} {x:9.4f} {own:8.4f} {told:9.4f} {error:8.4f} {abs(x - told) / error:6.2f}  {basis}")


def show(title: str, data: Regression, row: Row) -> None:
    """A line of the first table."""
    n = len(data.outcome)
    print(f"{title:32} {n:6} {row.coefficients:12.1e} {row.errors:12.1e} {row.sandwich:9.1e} {row.seconds:7.1f}")


if __name__ == "__main__":
    main()
