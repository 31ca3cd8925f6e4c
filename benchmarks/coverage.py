r"""How often do the printed 95% intervals hold the truth? Over many small problems of one compiled shape.

$$g = \tfrac12 (y - B(\xi) x - c(\xi) - \eta^{low})^2, \qquad
f = \tfrac12 (y - \tau(\xi) - \eta^{up})^2 + \tfrac\rho2 |x - \bar x|^2,$$
with $B, c, \tau$ random combinations of a few functions, so that $F$ is a quadratic, and so is $F_\Phi$, in which the
policy is the projection of $B x + c$ on the basis. Certified are the solution on fresh samples and on those it was
solved from, and points 1 to 3 standard errors away on fresh ones.
"""

import time
import warnings
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb

RHO, DX = 0.2, 2


def functions(u):
    """Of the context on the reference cube: what the problems are made of."""
    s = jnp.mean(u, axis=-1)
    t = u[..., 0]
    return jnp.stack([jnp.ones_like(s), t, s**2, jnp.exp(s), jnp.sin(3 * t), jnp.cos(2.5 * s)], axis=-1)


class Upper:
    def __init__(self, tau, centre):
        self.tau, self.centre = tau, centre

    def __call__(self, x, y, xi, eta):
        psi = functions(jnp.atleast_1d(xi))
        return (y - psi @ self.tau - eta["up"]) ** 2 / 2 + RHO * jnp.sum((x - self.centre) ** 2) / 2


class Lower:
    def __init__(self, B, c, shown):
        self.B, self.c, self.shown = B, c, shown

    def __call__(self, x, y, xi, eta):
        psi = functions(jnp.atleast_1d(xi))
        if self.shown:
            return (y - psi @ (self.B @ x + self.c)) ** 2 / 2
        return (y - psi @ (self.B @ x) - eta["low"]) ** 2 / 2


@dataclass(frozen=True)
class Mode:
    """What the problems of a mode have in common."""

    name: str
    domain: Any
    basis: Any
    n: int
    nodes: np.ndarray
    shown: bool = False
    sampler: bool = False


def _cube(d, n=200_000):
    from scipy.stats import qmc

    return 2 * qmc.Sobol(d, seed=0).random(2 ** int(np.log2(n))) - 1


GROUPS = np.linspace(-1, 1, 20)
LINE = np.linspace(-1, 1, 40_001)[:-1] + 1 / 40_000


def modes():
    total = cb.TotalDegree()
    box = lambda d: cb.Box(-np.ones(d), np.ones(d))
    return [
        Mode("exact, no noise", cb.Interval(-1.0, 1.0), cb.Chebyshev(3), 500, LINE, shown=True),
        Mode("exact, sampler", cb.Interval(-1.0, 1.0), cb.Chebyshev(3), 500, LINE, sampler=True),
        Mode("neighbours, groups", cb.Finite(GROUPS), cb.Categorical(), 1000, GROUPS),
        Mode("neighbours, 1-d", cb.Interval(-1.0, 1.0), cb.Chebyshev(3), 1000, LINE),
        Mode("neighbours, 2-d", box(2), cb.Chebyshev(3, index=total), 2000, _cube(2)),
        Mode("neighbours, 3-d", box(3), cb.Chebyshev(2, index=total), 2000, _cube(3)),
    ]


@dataclass
class Truth:
    """Everything in closed form, over quadrature nodes with features of the basis."""

    psi: np.ndarray
    B: np.ndarray
    c: np.ndarray
    tau: np.ndarray
    centre: np.ndarray
    size: float

    def of(self, phi, policy, x) -> dict[str, float]:
        mean = lambda table: table.T @ table / len(table)
        B, c, tau = self.psi @ self.B, self.psi @ self.c, self.psi @ self.tau
        table = np.column_stack([B, c, tau])
        kept = table - (rest := table - phi @ np.linalg.lstsq(phi, table, rcond=None)[0])
        out = {}
        vectors = {}
        for name, (M, r) in {
            "F": (B, c - tau),
            "F_Phi": (kept[:, :DX], kept[:, DX] - tau),
        }.items():
            H = mean(M) + RHO * np.eye(DX)
            linear = M.T @ r / len(M) - RHO * self.centre
            vectors[name] = H @ x + linear
            out["x " + name] = np.linalg.solve(H, -linear)
            if name == "F":
                bend = H
        out["gradient of F"] = np.linalg.norm(vectors["F"])
        out["gradient of F_Phi"] = np.linalg.norm(vectors["F_Phi"])
        gap = vectors["F"] - vectors["F_Phi"]
        out["gap"] = np.linalg.norm(gap)
        y = B @ x + c
        out["objective"] = np.mean((y - tau) ** 2) / 2 + self.size**2 / 2 + RHO * np.sum((x - self.centre) ** 2) / 2
        out["policy error"] = np.mean((policy - y) ** 2)
        out["adjoint error"] = np.mean(rest[:, DX + 1] ** 2)
        out["sensitivity error"] = np.mean(np.sum(rest[:, :DX] ** 2, axis=1))
        half = lambda v: v @ np.linalg.solve(bend, v) / 2
        out["regret"], out["regret, sampling"] = half(vectors["F"]), half(vectors["F_Phi"])
        out["regret, basis"] = half(gap)
        return out


class Noise(eqx.Module):
    """``eta`` given a context: a pytree, so that problems share compiled programs."""

    c: jax.Array = eqx.field(converter=jnp.asarray)
    sizes: jax.Array = eqx.field(converter=jnp.asarray)

    def __call__(self, key, xi, size):
        draws = jax.random.normal(key, (2, size), xi.dtype)
        mean = functions(jnp.atleast_1d(xi)) @ self.c
        return {"up": self.sizes[0] * draws[0], "low": mean + self.sizes[1] * draws[1]}


def make(mode: Mode, rng, rich: float):
    """A problem, a way to draw samples of it, and its truth. `rich`: how much of what the basis cannot express."""
    weight = np.array([1.0, 1.0, rich, rich, rich, rich])
    B, c, tau = weight[:, None] * rng.normal(size=(6, DX)), weight * rng.normal(size=6), weight * rng.normal(size=6)
    centre, sizes = rng.normal(size=DX), rng.choice([0.2, 0.5, 1.0], 2)
    d = mode.nodes.shape[1] if mode.nodes.ndim == 2 else 1
    psi = lambda xi: np.asarray(functions(jnp.asarray(np.reshape(xi, (len(xi), d)))))
    problem = cb.Problem(
        Upper(tau, centre),
        Lower(B, c, mode.shown),
        x0=np.zeros(DX),
        y0=0.0,
        domain=mode.domain,
        conditional=Noise(c, sizes) if mode.sampler else None,
    )

    def draw():
        if isinstance(mode.domain, cb.Finite):
            xi = np.repeat(GROUPS, mode.n // len(GROUPS))
        else:
            xi = rng.uniform(-1, 1, (mode.n, *mode.nodes.shape[1:]))
        up, low = sizes[0] * rng.normal(size=mode.n), psi(xi) @ c + sizes[1] * rng.normal(size=mode.n)
        return cb.Samples(xi, {"up": up, "low": low})

    return problem, draw, Truth(psi(mode.nodes), B, c, tau, centre, float(sizes[0]))


def figures(certificate) -> dict:
    regret = certificate.regret
    return {
        "objective": certificate.objective,
        "gradient of F": certificate.gradient_norm,
        "gradient of F_Phi": certificate.reduced_gradient_norm,
        "gap": certificate.hypergradient_gap,
        "policy error": certificate.policy_error,
        "adjoint error": certificate.adjoint_error,
        "sensitivity error": certificate.sensitivity_error,
        "regret": None if regret is None else regret.total,
        "regret, sampling": None if regret is None else regret.sampling,
        "regret, basis": None if regret is None else regret.basis,
    }


def one_problem(mode: Mode, rng, table: dict, verbose: bool) -> None:
    rich = float(rng.choice([0.0, 0.1, 0.5]))
    problem, draw, truth = make(mode, rng, rich)
    train, fresh = draw(), draw()
    found = cb.solve(problem, train, basis=mode.basis)
    said = found.uncertainty
    phi = np.asarray(found.basis(mode.nodes))
    truths = lambda x: truth.of(phi, np.asarray(found.policy(mode.nodes)), x)
    true = truths(np.asarray(found.x))
    lo, hi = said.interval
    for j in range(DX):
        if not np.isfinite(said.error[j]):
            table[mode.name, "solved", "x"].append((np.nan, np.nan, np.nan, np.nan))
            continue
        z = ((lo[j] + hi[j]) / 2 - true["x F_Phi"][j]) / max(said.error[j], 1e-300)
        table[mode.name, "solved", "x"].append((lo[j] <= true["x F_Phi"][j] <= hi[j], hi[j] - lo[j], said.error[j], z))
    for place in ("fresh", "same", "away"):
        solution = found
        if place == "away":
            step = rng.normal(size=DX)
            step *= rng.uniform(1, 3) / np.linalg.norm(step)
            error = np.where(np.isfinite(said.error), said.error, 0.1)
            solution = replace(found, x=found.x + jnp.asarray(step * error))
        certificate = cb.certify(problem, solution, train if place == "same" else fresh)
        if not certificate.mode.startswith(mode.name.split(",")[0]):
            raise AssertionError(f"{mode.name}: certified in {certificate.mode} mode")
        table[mode.name, place, "unresolved"].append((not certificate.unresolved, 0.0, 1.0, 0.0))
        true = truths(np.asarray(solution.x))
        for name, got in figures(certificate).items():
            if got is None:
                continue
            t, slack = true[name], 1e-9 * max(certificate.typical, 1e-3)
            held = got.low - slack <= t <= got.high + slack
            error = got.error if got.error > slack else np.nan  # rounding has no width to speak of
            table[mode.name, place, name].append((held, got.high - got.low, error, (float(got) - t) / error))
            if verbose and not held:
                print(f"   {mode.name} {place} {name}: {got!r} truly {t:.4g}")


def hidden_structure(count: int, rng) -> tuple[int, int]:
    """How many answers with a basis blind to the structure are certified, and how many left unresolved."""
    sure = open_ = 0
    for _ in range(count):
        w, size = float(rng.uniform(15, 120)), float(rng.choice([0.1, 0.5, 1.0]))
        upper = lambda x, y, xi, eta: -jnp.cos(w * xi) * y + x**2 / 2
        lower = lambda x, y, xi, eta: (y - x * jnp.cos(w * xi) - 1 - xi - eta) ** 2 / 2
        problem = cb.Problem(upper, lower, x0=0.0, y0=0.0, domain=cb.Interval(0.0, 1.0))
        draw = lambda: cb.Samples(rng.uniform(size=1000), size * rng.normal(size=1000))
        found = cb.solve(problem, draw(), basis=cb.Chebyshev(5))
        certificate = cb.certify(problem, found, draw())
        truth = abs(float(found.x) - 0.5 - np.sin(2 * w) / (4 * w))
        if certificate.unresolved:
            open_ += 1
        elif certificate.gradient_norm.high < truth / 2:
            sure += 1
            print(f"   certified: w {w:.1f}, noise {size}: {certificate.gradient_norm!r}, truly {truth:.3g}")
    return sure, open_


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--problems", 1020, "in all modes together"),
        ("--smooth", 200, "problems on which the share unresolved is counted"),
        ("--hidden", 50),
        ("--only", str, "a mode whose name holds this"),
        ("--seed", 0),
        ("--loud", False, "say what was missed"),
    )
    warnings.simplefilter("ignore")
    wanted = [m for m in modes() if arguments.only is None or arguments.only in m.name]
    table: dict = defaultdict(list)
    each, began, done = -(-arguments.problems // len(wanted)), time.perf_counter(), 0
    with cb.progress.ProgressBar(each * len(wanted), "coverage") as bar:
        for k, mode in enumerate(wanted):
            for i in range(each):
                one_problem(mode, np.random.default_rng([arguments.seed, k, i]), table, arguments.loud)
                done += 1
                bar.update(done, mode.name)
                if done % 50 == 0:
                    print(f"  {done} problems, {time.perf_counter() - began:.0f} s", flush=True)
            report(table, mode.name)
    rng = np.random.default_rng(arguments.seed)
    if arguments.smooth:
        open_ = 0
        mode = next(m for m in modes() if m.name == "neighbours, 1-d")
        for _ in range(arguments.smooth):
            problem, draw, _ = make(mode, rng, float(rng.choice([0.1, 0.5])))
            found = cb.solve(problem, draw())
            open_ += bool(cb.certify(problem, found, draw()).unresolved)
        print(f"smooth problems, no basis given: {open_} of {arguments.smooth} unresolved")
    if arguments.hidden:
        sure, open_ = hidden_structure(arguments.hidden, rng)
        print(f"hidden structure: {sure} of {arguments.hidden} certified (0 is wanted), {open_} unresolved")


def report(table: dict, name: str) -> None:
    """Coverage by place and quantity, with its binomial error, the width in standard errors, and z scores."""
    print(f"\n{name:<20}{'':<8}{'':<18}{'runs':>6}{'coverage':>16}{'width/se':>10}{'mean z':>8}{'sd z':>7}")
    for (mode, place, what), rows in table.items():
        if mode != name:
            continue
        held, width, error, z = np.array(rows, float).T
        fine = np.isfinite(held)
        share, n = float(np.mean(held[fine])), int(fine.sum())
        sd = np.sqrt(max(share * (1 - share), 1 / n) / n)
        mark = "  <--" if what != "unresolved" and share < 0.95 - 3 * np.sqrt(0.95 * 0.05 / n) else ""
        real = fine & np.isfinite(error)
        spread = np.median((width / error)[real]) if real.any() else np.nan
        z = z[real] if real.any() else np.array([np.nan])
        print(
            f"{'':<20}{place:<8}{what:<18}{n:>6}{100 * share:>10.1f} +-{100 * sd:>4.1f}{spread:>9.2f}"
            f"{np.mean(z):>8.2f}{np.std(z):>7.2f}{mark}{f'  ({len(rows) - n} not finite)' if n < len(rows) else ''}",
            flush=True,
        )


if __name__ == "__main__":
    main()
