"""Does a certificate print wrong numbers for badly scaled problems? Its figures against the truth, by quadrature.

``f`` curves by 1e2 to 1e8 in the policy (a parabola, a quartic or an exponential), ``y`` has one or two entries of
sizes from 1e-4 to 1e4, ``x`` may end at its bounds, there are 60 to 400 samples, and the policy is wavy: a basis of two
or three functions is given, or none. The lower level is a parabola or steeper, symmetric around a known policy, so that
the objective, its gradient and its minimum are integrals over the context. Prints a line for each figure: how often it
is printed, how often it is withheld, and how often it lies farther from the truth than five of its own standard errors
(those that its interval shows on that side: a length near zero has one end only).

Run: python benchmarks/bad_scales.py [--runs 100] [--seed 0] [--verbose]
"""

import warnings

import jax

import harness

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

import cobilevel as cb

FAR = 5  # standard errors
NODES, WEIGHTS = (np.asarray(part) for part in np.polynomial.legendre.leggauss(2000))
FIGURES = ("objective", "regret", "gradient", "policy error")


class Scales:
    """The numbers of one problem: two entries of ``x``, some of ``y``."""

    def __init__(self, rng):
        self.dy = int(rng.integers(1, 3))
        self.unit = jnp.asarray(10.0 ** rng.uniform(-4, 4, self.dy))  # of y
        self.curves = jnp.asarray(10.0 ** rng.uniform(2, 8))
        self.wave, self.tilt = jnp.asarray(rng.uniform(1, 9, self.dy)), jnp.asarray(rng.normal(size=(self.dy, 2)))
        self.aim, self.pull = jnp.asarray(rng.normal(size=self.dy)), jnp.asarray(10.0 ** rng.uniform(-2, 2))
        self.noise = 10.0 ** rng.uniform(-2, 0)
        self.kind = ("parabola", "quartic", "exponential")[rng.integers(3)]
        self.steep = bool(rng.integers(2))
        self.rows = int(rng.integers(60, 401))
        self.bound = float(rng.uniform(0.05, 0.5)) if rng.integers(2) else np.inf
        self.basis = (None, cb.Chebyshev(2), cb.Chebyshev(3))[rng.integers(3)]

    def policy(self, x, xi):
        """The solution of the lower level, in units of its own."""
        return self.tilt[:, 0] * x[0] + self.tilt[:, 1] * x[1] * xi + jnp.sin(self.wave * xi)

    def loss(self, u):
        """Of a distance of the policy from where it should be."""
        if self.kind == "parabola":
            return jnp.sum(u**2) / 2
        return jnp.sum(u**4 / 12 + u**2 / 20) if self.kind == "quartic" else jnp.sum(jnp.exp(u) - u)

    def problem(self):
        def upper(x, y, xi, eta):
            return self.curves * self.loss(y / self.unit - self.aim) + self.pull * self.curves * jnp.sum(x**2) / 2

        def lower(x, y, xi, eta):
            off = y / self.unit - self.policy(x, xi) - eta
            return jnp.sum(off**2 / 2 + (off**4 if self.steep else 0 * off))

        bounds = (-self.bound, self.bound) if np.isfinite(self.bound) else None
        return cb.Problem(upper, lower, jnp.zeros(2), jnp.zeros(self.dy), cb.Interval(-1.0, 1.0), x_bounds=bounds)

    def samples(self, rng):
        return cb.Samples(rng.uniform(-1, 1, self.rows), self.noise * rng.normal(size=(self.rows, self.dy)))

    def truth(self, solution):
        """The figures at a solution."""
        upper = self.problem().upper
        xi = jnp.asarray(NODES)

        def objective(x):
            values = jax.vmap(lambda c: upper(x, self.unit * self.policy(x, c), c, 0.0))(xi)
            return jnp.sum(jnp.asarray(WEIGHTS) * values) / 2 / self.curves

        both, x = jax.value_and_grad(objective), jnp.asarray(np.asarray(solution.x, float))
        value, slope = both(x)
        best = minimize(both, np.asarray(x), jac=True, bounds=[(-self.bound, self.bound)] * 2, tol=1e-14)
        free = ~((x <= -self.bound) & (slope > 0) | (x >= self.bound) & (slope < 0))
        off = np.asarray(solution.policy(NODES)) - np.asarray(jax.vmap(lambda c: self.unit * self.policy(x, c))(xi))
        gain, size = float(self.curves) * (float(value) - best.fun), float(self.curves) * float(value)
        norm = float(self.curves) * float(np.linalg.norm(np.asarray(slope)[np.asarray(free)]))
        return size, max(gain, 0.0), norm, float(WEIGHTS @ np.sum(off**2, axis=1) / 2)


def certified(seed):
    """What a certificate prints, and the truth."""
    rng = np.random.default_rng(seed)
    case = Scales(rng)
    solution = cb.solve(case.problem(), case.samples(rng), basis=case.basis, progress=False)
    certificate = cb.certify(case.problem(), solution, case.samples(rng))
    regret = None if certificate.regret is None else certificate.regret.total
    found = (certificate.objective, regret, certificate.gradient_norm, certificate.policy_error)
    return case, solution, certificate, found, case.truth(solution)


def main():
    options = harness.arguments(__doc__, ("--runs", 100), ("--seed", 0), ("--verbose", False))
    warnings.simplefilter("ignore")
    printed, withheld, wrong = (dict.fromkeys(FIGURES, 0) for _ in range(3))
    bad = 0
    for seed in range(options.seed, options.seed + options.runs):
        case, solution, certificate, found, truth = certified(seed)
        errors = []
        for name, figure, right in zip(FIGURES, found, truth, strict=True):
            if figure is None or not np.isfinite(float(figure)) or not np.isfinite(figure.error):
                withheld[name] += 1
                continue
            printed[name] += 1
            rounding = 1e-9 * (abs(right) + abs(float(figure))) + (1e-9 * truth[0] if name != "policy error" else 0)
            reach = (figure.high if right > figure else figure.low) - float(figure)  # 1.96 of them, or more
            if abs(float(figure) - right) > FAR * max(figure.error, abs(reach) / 1.96) + rounding:
                wrong[name] += 1
                errors.append(f"{name} {figure!r} +- {figure.error:.3g}, truly {right:.4g}")
        bad += bool(errors)
        if options.verbose and errors:
            kind = f"{case.kind}{', steep' if case.steep else ''}, {case.rows} rows, dy {case.dy}"
            kind += (
                f", {solution.basis.basis!r}, noise {case.noise:.2g}, bound {case.bound:.2g}, {solution.result.name}"
            )
            print(f"{seed}: {kind}, {certificate.mode}: {'; '.join(errors)}. {certificate.left_out}", flush=True)
    for name in FIGURES:
        print(f"{name:<14} printed {printed[name]:>4}, withheld {withheld[name]:>4}, wrong {wrong[name]:>4}")
    print(f"certificates with a wrong figure: {bad} of {options.runs}")


if __name__ == "__main__":
    main()
