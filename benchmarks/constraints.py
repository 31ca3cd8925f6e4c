"""Constraints on y against an outside solver, context by context: Clarabel for quadratic programs of 20 variables.

For bounds, a simplex and a budget: the policy error, the violation at 1000 fresh contexts, and ``x`` and ``F`` against
a search over ``x`` with every context solved by Clarabel; the hypergradient against finite differences of the
constrained objective as smoothing falls; a quadratic penalty and an augmented Lagrangian in place of the barrier; and
the two-road problem with flows that are nonnegative and add up, next to its penalised form.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.sparse

import cobilevel as cb
import harness

SIZE, ROWS, FRESH = 20, 300, 1000
DOMAIN = cb.Interval(0.0, 1.0)
STARTS = [np.array([a, b]) for a in np.linspace(-3, 3, 7) for b in np.linspace(-3, 3, 7)]


@dataclass(frozen=True)
class Program:
    """``min y' Q y / 2 - c(x, xi)' y`` under ``G y <= h`` and ``A y = b``."""

    name: str
    constraints: tuple
    G: np.ndarray
    h: np.ndarray
    A: np.ndarray
    b: np.ndarray


def programs() -> list[Program]:
    eye, none = np.eye(SIZE), (np.zeros((0, SIZE)), np.zeros(0))
    box = (np.vstack([eye, -eye]), np.concatenate([np.ones(SIZE), np.zeros(SIZE)]))
    total = 0.3 * SIZE
    budget = (np.vstack([box[0], np.ones((1, SIZE))]), np.append(box[1], total))
    at_most = lambda x, y, xi: jnp.sum(y) - total
    return [
        Program("bounds", (cb.Bounds(0.0, 1.0),), *box, *none),
        Program("simplex", (cb.Simplex(),), -eye, np.zeros(SIZE), np.ones((1, SIZE)), np.ones(1)),
        Program("budget", (cb.Bounds(0.0, 1.0), at_most), *budget, *none),
    ]


class Level:
    """The objectives, with numbers drawn once."""

    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(SIZE, SIZE)) / np.sqrt(SIZE)
        self.Q = root @ root.T + 0.5 * np.eye(SIZE)
        self.table = rng.normal(size=(4, SIZE)) * np.array([0.3, 0.8, 0.8, 0.8])[:, None] + 0.1
        self.moves = rng.normal(size=(2, SIZE)) * 0.5
        self.aim = rng.uniform(0, 0.6, size=SIZE)

    def pull(self, x, xi, np=jnp):
        shapes = np.stack([np.ones_like(xi), np.sin(4 * xi), np.cos(3 * xi), xi])
        return shapes.T @ self.table + x @ self.moves

    def lower(self, x, y, xi, eta):
        return y @ self.Q @ y / 2 - self.pull(x, xi) @ y

    def upper(self, x, y, xi, eta):
        return jnp.sum((y - self.aim) ** 2) + 0.1 * jnp.sum(x**2)

    def problem(self, constraints, smoothing=None):
        start = jnp.full(SIZE, 1 / SIZE)
        return cb.Problem(
            self.upper, self.lower, jnp.zeros(2), start, DOMAIN, constraints=constraints, smoothing=smoothing
        )

    def exact(self, program: Program, x, xi) -> np.ndarray:
        """The constrained solutions, one context after the other, by Clarabel."""
        import clarabel  # a peer, installed by name

        rows = scipy.sparse.csc_matrix(np.vstack([program.A, program.G]))
        right = np.concatenate([program.b, program.h])
        cones = [clarabel.ZeroConeT(len(program.b))] if len(program.b) else []
        cones.append(clarabel.NonnegativeConeT(len(program.h)))
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
        P, found = scipy.sparse.csc_matrix(np.triu(self.Q)), []
        for c in self.pull(np.asarray(x), np.asarray(xi), np):
            found.append(clarabel.DefaultSolver(P, -c, rows, right, cones, settings).solve().x)
        return np.array(found)

    def objective(self, program: Program, x, xi) -> float:
        y = self.exact(program, x, xi)
        return float(np.mean(np.sum((y - self.aim) ** 2, axis=1)) + 0.1 * np.sum(np.asarray(x) ** 2))


def best_decision(level: Level, program: Program, xi: np.ndarray):
    """A search over ``x`` without derivatives, from several starts: F has local minima."""
    first = min(STARTS, key=lambda x: level.objective(program, x, xi))
    return min((search_from(level, program, xi, x) for x in (first, np.zeros(2))), key=lambda one: one.fun)


def search_from(level: Level, program: Program, xi: np.ndarray, start: np.ndarray):
    """A search over ``x`` without derivatives from one start."""
    F, options = lambda x: level.objective(program, x, xi), {"xatol": 1e-5, "fatol": 1e-10}
    return scipy.optimize.minimize(F, start, method="Nelder-Mead", options=options)


def against_clarabel(level: Level, program: Program, bases: list, smoothings: list) -> None:
    rng = np.random.default_rng(1)
    xi, fresh = rng.uniform(size=ROWS), rng.uniform(size=FRESH)
    search = best_decision(level, program, xi)
    print(f"\n{program.name}: lowest F {search.fun:.6f} at x = {np.round(search.x, 4)}, from {len(STARTS)} starts")
    print("  x* and F*: where a search without derivatives leads from the x found, every context solved by Clarabel")
    print("  basis           smoothing  policy error  violation  equalities  |x - x*|   F - F*    F*       seconds")
    for basis in bases:
        for smoothing in smoothings:
            problem = level.problem(program.constraints, smoothing)
            found, seconds = harness.timed(cb.solve, problem, cb.Samples(xi), basis=basis)
            y, exact = np.asarray(found.policy(fresh)), level.exact(program, found.x, fresh)
            error = np.mean(np.sum((y - exact) ** 2, axis=1)) / np.mean(np.sum(exact**2, axis=1))
            broken = np.max(np.maximum(y @ program.G.T - program.h, 0), initial=0.0)
            missed = np.max(np.abs(y @ program.A.T - program.b), initial=0.0)
            x = np.asarray(found.x)
            near = search_from(level, program, xi, x)
            print(
                f"  {basis!r:<16}{smoothing or 1e-4:<9.0e}  {error:<12.1e}  {broken:<9.1e}  {missed:<10.1e}  "
                f"{np.abs(x - near.x).max():<9.1e}  {level.objective(program, x, xi) - near.fun:<8.1e}  "
                f"{near.fun:<7.5f}  {seconds:.1f}" + ("" if found.converged else f"  {found.result.name.lower()}")
            )


def hypergradients(level: Level, program: Program) -> None:
    """At contexts away from corners of the policy: certify's gradient against differences of the constrained F."""
    x, h = np.array([0.2, -0.1]), 1e-4
    xi = np.random.default_rng(2).uniform(size=60)
    patterns = lambda at: level.exact(program, at, xi) @ program.G.T > program.h - 1e-7
    same = np.all(
        [np.all(patterns(x + s * e) == patterns(x), axis=1) for e in np.eye(2) for s in (-3e-2, 3e-2)], axis=0
    )
    xi = xi[same]
    slope = [
        (level.objective(program, x + h * e, xi) - level.objective(program, x - h * e, xi)) / (2 * h) for e in np.eye(2)
    ]
    print(f"\n{program.name}: gradient of the constrained F at {len(xi)} contexts by differences {np.round(slope, 6)}")
    for smoothing in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        stated = level.problem(program.constraints, smoothing).at(jnp.asarray(x))
        reduced = cb.reduce(stated, cb.Chebyshev(3), cb.Samples(xi))
        found = cb.certify(stated, reduced.lift(reduced.x0, reduced.W0), cb.Samples(xi), mode="exact")
        error = np.abs(np.asarray(found.gradient) - slope).max() / np.linalg.norm(slope)
        print(f"  smoothing {smoothing:.0e}: relative error {error:.1e}")


def other_ways(level: Level, program: Program) -> None:
    """The same problem with a quadratic penalty and with an augmented Lagrangian, multipliers sample by sample."""
    rng = np.random.default_rng(1)
    xi, fresh = rng.uniform(size=ROWS), rng.uniform(size=FRESH)
    samples, basis = cb.Samples(xi), cb.Chebyshev(20)
    start = jnp.full(SIZE, 1 / SIZE)
    G, h = jnp.asarray(program.G), jnp.asarray(program.h)
    report = lambda name, x, policy: _row(level, program, name, x, policy, xi, fresh)
    print(f"\n{program.name}, {basis!r}: what stands for the constraints\n  {'':<34}policy error  violation  F")
    for weight in (1e1, 1e3, 1e5):
        penal = lambda x, y, xi, eta, w=weight: (
            level.lower(x, y, xi, eta) + w / 2 * jnp.sum(jnp.maximum(G @ y - h, 0) ** 2)
        )
        found = cb.solve(cb.Problem(level.upper, penal, jnp.zeros(2), start, DOMAIN), samples, basis=basis)
        report(f"quadratic penalty {weight:.0e}", found.x, found.policy)
    table, weight = np.zeros((ROWS, len(program.h))), 1e2
    lagrangian = lambda x, y, xi, eta: (
        level.lower(x, y, xi, eta) + jnp.sum(jnp.maximum(eta + weight * (G @ y - h), 0) ** 2) / (2 * weight)
    )
    problem = cb.Problem(level.upper, lagrangian, jnp.zeros(2), start, DOMAIN, lower_noise=None)
    for _ in range(8):
        found = cb.solve(problem, cb.Samples(xi, table), basis=basis)
        y = np.asarray(found.policy(xi))
        table = np.maximum(table + weight * (y @ program.G.T - program.h), 0)
    report(f"augmented Lagrangian {weight:.0e}, 8 rounds", found.x, found.policy)
    for smoothing in (1e-3, 1e-4, 1e-5):
        found = cb.solve(level.problem(program.constraints, smoothing), samples, basis=basis)
        report(f"barrier {smoothing:.0e}", found.x, found.policy)


def _row(level, program, name, x, policy, xi, fresh) -> None:
    y, exact = np.asarray(policy(fresh)), level.exact(program, x, fresh)
    error = np.mean(np.sum((y - exact) ** 2, axis=1)) / np.mean(np.sum(exact**2, axis=1))
    broken = np.max(np.maximum(y @ program.G.T - program.h, 0))
    print(f"  {name:<34}{error:<12.1e}  {broken:<9.1e}  {level.objective(program, np.asarray(x), xi):.6f}")


def true_flows(lower, x, xi) -> np.ndarray:
    """Equilibrium flows that are nonnegative and add up to the demand: one price for all roads in use, by bisection."""
    t0, x = np.asarray(lower.free_time), np.asarray(x)
    carried = lambda p: x * np.maximum((p[:, None] / t0 - 1) / lower.a, 0) ** (1 / lower.b)
    low, high = np.full(len(xi), t0.min()), np.full(len(xi), 1e6)
    for _ in range(200):
        middle = (low + high) / 2
        enough = carried(middle).sum(axis=1) > xi
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return carried(high)


def two_roads(instances: int) -> None:
    """The paper's network, penalised as printed and with its constraints stated; Newton, means over instances."""
    print(f"\ntwo roads, {instances} instances, Newton: means of F/F_ref, of the policy error and of demand not met")
    print("  basis           lower level   F/F_ref    policy error  demand missed  most negative flow")
    for N in (5, 10, 20):
        rows = {"penalised": [], "constrained": []}
        for seed in range(instances):
            one = cb.gallery.two_edge_traffic(seed)
            lower, rng = one.problem.lower, np.random.default_rng(1000 + seed)
            potential = lambda x, y, xi, eta, g=lower: jnp.sum(
                g.free_time * (y + g.a * jnp.maximum(y, 0) * (jnp.maximum(y, 0) / x) ** g.b / (g.b + 1))
            )
            stated = cb.Problem(
                one.problem.upper, potential, one.problem.x0, jnp.full(2, 0.25), DOMAIN, x_bounds=(0.05, 3.0),
                constraints=[cb.Equalities([[1.0, 1.0]], lambda x, xi: xi), cb.Bounds(0.0)],
            )  # fmt: skip
            draw = lambda count: rng.uniform(size=count)
            train, test = draw(1000), draw(1000)
            noisy = lambda xi: np.maximum(true_flows(lower, one.truth.x, xi) + 0.05 * rng.normal(size=(len(xi), 2)), 0)
            seen, judged = noisy(train), noisy(test)
            distance = lambda y: np.mean(np.linalg.norm(y - judged, axis=1))
            reference = distance(true_flows(lower, one.truth.x, test))
            for name, problem in (("penalised", one.problem), ("constrained", stated)):
                found = cb.solve(problem, cb.Samples(train, seen), basis=cb.Chebyshev(N))
                y, exact = np.asarray(found.policy(test)), true_flows(lower, found.x, test)
                own = np.asarray(one.truth.y(found.x, jnp.asarray(test))) if name == "penalised" else exact
                rows[name].append(
                    [distance(exact) / reference, np.mean(np.sum((y - own) ** 2, axis=1)),
                     np.mean(test - y.sum(axis=1)), -y.min()]
                )  # fmt: skip
        for name, table in rows.items():
            ratio, error, missed, negative = np.mean(table, axis=0)
            label = f"Chebyshev({N})"
            print(f"  {label:<16}{name:<12}  {ratio:<9.4f}  {error:<12.1e}  {missed:<13.1e}  {negative:.1e}")


def main() -> None:
    quick = harness.arguments(__doc__, ("--quick", False, "one basis, one smoothing, few instances")).quick
    jax.config.update("jax_enable_x64", True)
    level = Level()
    bases = [cb.Chebyshev(20)] if quick else [cb.Chebyshev(10), cb.Chebyshev(20), cb.Chebyshev(40)]
    for program in programs():
        against_clarabel(level, program, bases, [None] if quick else [1e-3, None, 1e-5])
    for program in programs():
        hypergradients(level, program)
    if not quick:
        other_ways(level, programs()[0])
    two_roads(3 if quick else 20)


if __name__ == "__main__":
    main()
