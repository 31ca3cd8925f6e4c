"""Is the library confident only where it is right? Families of problems whose answers are known, no settings given.

Each run is solved and certified on fresh samples, and is one of

- right: every 95% interval of a coordinate of ``x``, of the gradient norm and of the policy's error, made 2.2 times
  as wide (its ends moved out by 2.35 standard errors), holds the truth of the problem as stated: of the thousands of
  intervals of a full run, chance puts one beyond that in twenty runs or so; those beyond 1.75 times, as chance does
  with one in 1500, are counted;
- undecided: a standard error is infinite or NaN, something is said not to be determined, the run did not converge, or
  the certificate is unresolved;
- WRONG: confident, and not so.

Exits with 1 where any run is WRONG.
"""

import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import doubt
import harness
import jumps

jax.config.update("jax_enable_x64", True)

import cobilevel as cb

WIDER, FAR = 2.2, 1.75
SEEN = {"intervals": 0, "as printed": 0, "far": 0}
NODES, WEIGHTS = np.polynomial.legendre.leggauss(2000)
UNIT, UNIT_WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2  # on [0, 1]


@dataclass
class Case:
    """One run: a problem with its samples, and what is true of it.

    - `x`: the minimiser, ``None`` where there is none; `loose`: coordinates that nothing determines.
    - `gradient`: of ``F``, a function of ``x``; `policy`: ``y*`` as a function of ``x`` and contexts.
    - `judged`: whether the interval of ``x`` is to hold `x` (not where a basis too small is given).
    - `check`: a judgement of its own, instead.
    """

    label: str
    problem: Any = None
    train: Any = None
    fresh: Any = None
    x: Any = None
    loose: tuple[int, ...] = ()
    gradient: Callable | None = None
    policy: Callable | None = None
    options: dict = field(default_factory=dict)
    judged: bool = True
    single: bool = False
    check: Callable | None = None


def holds(interval, error, truth, scale=0.0) -> bool:
    slack = 1e-7 * max(abs(truth), scale)

    def within(times):
        more = (times - 1) * 1.96 * error + slack
        return bool(interval[0] - more <= truth <= interval[1] + more)

    SEEN["intervals"] += 1
    SEEN["as printed"] += within(1)
    SEEN["far"] += not within(FAR)
    return within(WIDER)


def population(objective: Callable, policy: Callable, start: Any, contexts=UNIT, weights=UNIT_WEIGHTS):
    """The minimiser of ``sum w objective(x, policy(x, xi), xi)`` and its gradient as a function."""
    xi, w = jnp.asarray(contexts), jnp.asarray(weights)
    total = jax.jit(lambda x: w @ jax.vmap(lambda c: objective(x, policy(x, c), c))(xi))
    slope, bend = jax.jit(jax.grad(total)), jax.jit(jax.hessian(total))
    x = jnp.asarray(start, float)
    for _ in range(12):
        step = jnp.linalg.solve(jnp.atleast_2d(bend(x)), jnp.atleast_1d(slope(x))).reshape(x.shape)
        x = x - step
    return np.asarray(x), lambda at: np.asarray(slope(jnp.asarray(at, float)))


# ---- 1: what a function sees outside of itself changes between solves ----

COST = 1.0
SETTINGS = {"cost": 1.0}
ARRAY = np.ones(1)
LIST = [1.0]


class Model:
    cost = 1.0

    def upper(self, x, y, xi, eta):
        return (y - self.cost * xi - eta["up"]) ** 2 / 2 + 0.05 * x**2


def upper_global(x, y, xi, eta):
    return (y - COST * xi - eta["up"]) ** 2 / 2 + 0.05 * x**2


def upper_dict(x, y, xi, eta):
    return (y - SETTINGS["cost"] * xi - eta["up"]) ** 2 / 2 + 0.05 * x**2


def upper_array(x, y, xi, eta):
    return (y - jnp.asarray(ARRAY)[0] * xi - eta["up"]) ** 2 / 2 + 0.05 * x**2


def upper_list(x, y, xi, eta):
    return (y - LIST[0] * xi - eta["up"]) ** 2 / 2 + 0.05 * x**2


def lower_linear(x, y, xi, eta):
    return (y - x * (1 + xi) - eta["low"]) ** 2 / 2


def set_cost(kind, model, value):
    if kind == "global":
        globals()["COST"] = value
    elif kind == "dict":
        SETTINGS["cost"] = value
    elif kind == "array":
        ARRAY[0] = value
    elif kind == "list":
        LIST[0] = value
    else:
        model.cost = value


def changing(count: int) -> Iterator[Case]:
    rng, model = np.random.default_rng(1), Model()
    uppers = {
        "global": upper_global,
        "dict": upper_dict,
        "array": upper_array,
        "list": upper_list,
        "method": model.upper,
    }
    problems = {
        kind: cb.Problem(upper, lower_linear, x0=1.0, y0=0.0, domain=cb.Interval(0.0, 1.0))
        for kind, upper in uppers.items()
    }
    for k in range(count):
        kind, cost = list(uppers)[k % 5], float(rng.uniform(-5, 5))
        set_cost(kind, model, cost)
        draw = lambda: noisy(rng, 2000, ("up", "low"), 0.5)
        yield Case(
            f"{kind}={cost:.2f}",
            problems[kind],
            draw(),
            draw(),
            cost * (5 / 6) / (7 / 3 + 0.1),
            gradient=lambda x, c=cost: x * (7 / 3 + 0.1) - c * 5 / 6,
            policy=lambda x, xi: x * (1 + xi),
        )


def noisy(rng, n, names, size, low=0.0, high=1.0):
    return cb.Samples(rng.uniform(low, high, n), {name: size * rng.normal(size=n) for name in names})


# ---- 2: instrumental variables ----


def residual_lower(x, y, z, eta):
    return (y - (eta["out"] - x @ eta["t"])) ** 2 / 2


def square_upper(x, y, z, eta):
    return y**2 / 2


RESIDUAL = {
    d: cb.Problem(square_upper, residual_lower, x0=np.zeros(d), y0=0.0, domain=cb.Interval(-1.0, 1.0))
    for d in (1, 2, 3, 4)
}


def iv_samples(rng, n, means, beta, scale=1.0):
    """``t = means(z) + v``, out ``= beta t + e``, with ``e`` and ``v`` dependent."""
    z = rng.uniform(-1, 1, n)
    common = rng.normal(size=n)
    t = np.stack([m(z) for m in means], axis=1)
    for j, m in enumerate(means):
        if m is not one:
            t[:, j] += 0.6 * common + 0.8 * rng.normal(size=n)
    out = t @ beta + scale * (0.7 * common + 0.7 * rng.normal(size=n))
    return cb.Samples(z, {"t": t, "out": out})


def one(z):
    return np.ones_like(z)


def iv_truth(means, beta):
    table = np.stack([m(NODES) for m in means], axis=1)
    moments = (table * (WEIGHTS / 2)[:, None]).T @ table
    gradient = lambda x: moments @ (np.asarray(x) - beta)
    policy = lambda x, z: np.stack([m(z) for m in means], axis=1) @ (beta - np.asarray(x))
    return gradient, policy


def instruments(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(2)
    for k in range(count):
        n = 100_000 if k % 40 == 39 else (2000, 10_000)[k % 8 == 7]
        slope = float(np.geomspace(0.03, 1, 9)[k % 9])
        shape = ("line", "two", "sine", "cubic", "line")[k % 5]
        curve = lambda a, g: lambda z: a * g(z)
        means = {
            "line": [curve(slope * 3**0.5, lambda z: z)],
            "two": [one, curve(slope * 3**0.5, lambda z: z)],
            "sine": [curve(slope * 2**0.5, lambda z: np.sin(5 * z))],
            "cubic": [one, *(curve(slope * 2**0.5, lambda z, p=p: np.cos(p * np.arccos(z))) for p in (1, 2, 3))],
        }[shape]
        beta = np.round(rng.normal(size=len(means)), 2)
        gradient, policy = iv_truth(means, beta)
        draw = lambda: iv_samples(rng, n, means, beta)
        yield Case(
            f"{shape} slope {slope:.2g} n {n}",
            RESIDUAL[len(means)],
            draw(),
            draw(),
            beta,
            gradient=gradient,
            policy=policy,
        )


# ---- 3: not determined ----


def lower_sum(x, y, xi, eta):
    return (y - (x[0] + x[1]) * (1 + xi) - eta["low"]) ** 2 / 2


def lower_first(x, y, xi, eta):
    return (y - x[0] * (1 + xi) - eta["low"]) ** 2 / 2


def upper_target(x, y, xi, eta):
    return (y - 2 * xi - eta["up"]) ** 2 / 2


def upper_floor(x, y, xi, eta):
    return (jnp.floor(x) - eta["up"]) ** 2 + y**2


def lower_alone(x, y, xi, eta):
    return (y - xi - eta["low"]) ** 2 / 2


def upper_stairs(x, y, xi, eta):
    return (jnp.floor(4 * x) / 4 + y - eta["up"]) ** 2


def undetermined(count: int) -> Iterator[Case]:
    rng, unit = np.random.default_rng(3), cb.Interval(0.0, 1.0)
    for k in range(count):
        kind = ("sum", "collinear", "floor", "irrelevant", "stairs", "sum_scaled")[k % 6]
        draw = lambda: noisy(rng, 2000, ("up", "low"), float(rng.choice([0.1, 0.5, 2.0])))
        if kind in ("sum", "sum_scaled"):
            s = 1.0 if kind == "sum" else float(10 ** rng.uniform(-4, 4))
            lower = lower_sum if s == 1 else scaled_sum(s)
            problem = cb.Problem(upper_target, lower, x0=rng.normal(size=2), y0=0.0, domain=unit)
            yield Case(f"{kind} {s:.1e}", problem, draw(), draw(), loose=(0, 1))
        elif kind == "collinear":
            make = lambda: collinear(rng)
            yield Case(kind, RESIDUAL[3], make(), make(), loose=(1, 2))
        elif kind == "irrelevant":
            problem = cb.Problem(upper_target, lower_first, x0=rng.normal(size=2), y0=0.0, domain=unit)
            yield Case(kind, problem, draw(), draw(), loose=(1,))
        else:
            upper = upper_floor if kind == "floor" else upper_stairs
            problem = cb.Problem(upper, lower_alone, x0=float(rng.normal() * 3), y0=0.0, domain=unit)
            yield Case(kind, problem, draw(), draw(), loose=(0,))


def scaled_sum(s):
    return lambda x, y, xi, eta: (y - (x[0] + s * x[1]) * (1 + xi) - eta["low"]) ** 2 / 2


def collinear(rng):
    base = iv_samples(rng, 2000, [one, lambda z: z], np.array([1.0, 2.0]))
    t, out = np.asarray(base.eta["t"]), np.asarray(base.eta["out"])
    return cb.Samples(base.xi, {"t": np.stack([t[:, 0], t[:, 1], 3 * t[:, 1] - t[:, 0]], axis=1), "out": out})


# ---- 4: badly scaled ----


def scaled(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(4)
    for k in range(count):
        scale = np.array([1.0, 10.0 ** rng.uniform(-6, 6), 10.0 ** rng.uniform(-6, 6)])
        plain = [one, lambda z: z, lambda z: np.cos(2 * z)]
        beta = rng.normal(size=3)
        gradient, policy = iv_truth(plain, beta)

        def draw():
            base = iv_samples(rng, 2000, plain, beta)
            return cb.Samples(base.xi, {"t": np.asarray(base.eta["t"]) * scale, "out": base.eta["out"]})

        yield Case(
            "scales " + ", ".join(f"{s:.0e}" for s in scale[1:]),
            RESIDUAL[3],
            draw(),
            draw(),
            beta / scale,
            gradient=lambda x: scale * gradient(np.asarray(x) * scale),
            policy=lambda x, z: policy(np.asarray(x) * scale, z),
        )


# ---- 5: single precision, controls as they come ----

WAGES = cb.Problem(
    lambda x, y, age, eta: y**2 / 2,
    lambda x, y, age, eta: (
        (y - (eta["wage"] - x["one"] - x["age"] * age - x["age2"] * age**2 - x["income"] * eta["income"])) ** 2 / 2
    ),
    x0={"one": 0.0, "age": 0.0, "age2": 0.0, "income": 0.0},
    y0=0.0,
    domain=cb.Interval(20.0, 65.0),
)


def in_single(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(5)
    age = 42.5 + 22.5 * NODES
    for k in range(count):
        beta = {"one": 3.0, "age": 0.8, "age2": -0.01, "income": float(10 ** rng.uniform(-4, -2))}
        bend = float(rng.uniform(4, 9))
        income = lambda a: 5e4 + 3e4 * np.sin((a - 20) / bend)
        names = sorted(beta)
        means = {"one": np.ones_like, "age": lambda a: a, "age2": lambda a: a**2, "income": income}
        row = lambda a: np.stack([means[name](a) for name in names], axis=-1)
        table = row(age)
        moments, truth = (table * (WEIGHTS / 2)[:, None]).T @ table, np.array([beta[name] for name in names])

        def draw():
            a = rng.uniform(20, 65, 2000)
            got = income(a) + 1e4 * rng.normal(size=2000)
            hidden = (got - income(a)) / 1e4
            wage = beta["one"] + beta["age"] * a + beta["age2"] * a**2 + beta["income"] * got + 5 * hidden
            return cb.Samples(a, {"wage": wage + 5 * rng.normal(size=2000), "income": got})

        yield Case(
            f"income {beta['income']:.1e} bend {bend:.1f}",
            WAGES,
            draw(),
            draw(),
            truth,
            single=True,
            gradient=lambda x: moments @ (x - truth),
            policy=lambda x, a: row(a) @ (truth - x),
        )


# ---- 6: finitely many contexts ----


def grouped_lower(x, y, xi, eta):
    return (y - (eta["out"] - x * eta["t"])) ** 2 / 2


def groups(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(6)
    for k in range(count):
        many, rows = ((5, 200), (20, 50), (50, 20), (10, 100), (50, 10), (20, 10))[k % 6]
        strength, beta = float(rng.choice([0.2, 0.5, 1.0])), float(rng.normal())
        means = strength * rng.normal(size=many)
        unseen = k % 3 == 2  # a value of the domain with rare contexts, seen in none of the samples to solve from
        problem = cb.Problem(
            square_upper, grouped_lower, x0=0.0, y0=0.0, domain=cb.Finite(np.arange(many + unseen, dtype=float))
        )
        all_means = np.append(means, 1.0) if unseen else means

        def draw(also=0):
            g = np.concatenate([np.repeat(np.arange(many), rows), np.full(also, many, int)])
            v, e = rng.normal(size=len(g)), rng.normal(size=len(g))
            t = all_means[g] + v
            return cb.Samples(g.astype(float), {"t": t, "out": beta * t + 0.8 * v + 0.6 * e})

        moment = np.mean(means**2)
        yield Case(
            f"{many} groups of {rows}, strength {strength}, unseen {unseen}",
            problem,
            draw(),
            draw(),
            beta,
            gradient=lambda x: moment * (x - beta),
            policy=lambda x, g: all_means[np.asarray(g, int)] * (beta - x),
        )


# ---- 7: hidden structure ----


def hidden_problem(w, high):
    upper = lambda x, y, xi, eta: -jnp.cos(w * xi) * y + x**2 / 2
    lower = lambda x, y, xi, eta: (y - x * jnp.cos(w * xi) - 1 - xi / high - eta["low"]) ** 2 / 2
    return cb.Problem(upper, lower, x0=0.0, y0=0.0, domain=cb.Interval(0.0, high))


def hidden(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(7)
    for k in range(count):
        n = (500, 2000, 5000)[k % 3]
        w, high = ((2 * np.pi, 7.0), (2 * np.pi, 52.0), (float(rng.uniform(10, 120)), 1.0))[min(k % 5, 2)]
        size = float(rng.choice([0.1, 0.5, 1.0]))
        given = k % 2 == 0
        square = np.mean(np.cos(w * high * (np.arange(400_000) + 0.5) / 400_000) ** 2)
        draw = lambda: noisy(rng, n, ("low",), size, 0.0, high)
        yield Case(
            f"w {w * high:.0f} n {n} noise {size} {'Chebyshev(5)' if given else 'nothing given'}",
            hidden_problem(w, high),
            draw(),
            draw(),
            square,
            gradient=lambda x: x - square,
            policy=lambda x, xi: x * np.cos(w * xi) + 1 + xi / high,
            judged=not given,
            options={"basis": cb.Chebyshev(5)} if given else {},
        )


# ---- 8: smooth ----


def smooth(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(8)
    for k in range(count):
        if k % 5 in (0, 1, 2):
            d = (None, 2, 3)[k % 5]
            sizes = (0.1, 0.3) if k % 2 else (0.5, 1.0)
            inst = cb.gallery.quadratic(1000 + k, dx=2, dy=2, dimension=d, train=2000, test=2000, noise=sizes)
            problem = cb.Problem(
                inst.problem.upper,
                inst.problem.lower,
                x0=inst.problem.x0,
                y0=inst.problem.y0,
                domain=inst.problem.domain,
            )
            yield Case(
                f"quadratic in {d or 1} dimensions, noise {sizes}",
                problem,
                inst.train,
                inst.test,
                np.asarray(inst.truth.x),
                gradient=lambda x, i=inst: np.asarray(i.truth.gradient(jnp.asarray(x))),
                policy=lambda x, xi, i=inst: np.asarray(i.truth.y(jnp.asarray(x), jnp.asarray(xi))),
            )
            continue
        a, b, size = float(rng.uniform(0.5, 3)), float(rng.uniform(-1, 1)), float(rng.choice([0.2, 0.6]))
        if k % 5 == 3:
            policy = lambda x, xi: jnp.exp(x[0] * xi) + x[1] * xi
        else:
            policy = lambda x, xi: jnp.sin(x[0] + a * xi) + x[1]
        objective = lambda x, y, xi: (y - b - a * xi) ** 2 / 2 + 0.1 * jnp.sum((x - 0.5) ** 2)
        upper = lambda x, y, xi, eta: objective(x, y, xi + 0 * eta["up"]) + eta["up"] * y
        lower = lambda x, y, xi, eta: (y - policy(x, xi) - eta["low"]) ** 2 / 2
        problem = cb.Problem(upper, lower, x0=np.array([0.5, 0.5]), y0=0.0, domain=cb.Interval(0.0, 1.0))
        _, slope = population(objective, policy, [0.5, 0.5])
        draw = lambda: noisy(rng, 2000, ("up", "low"), size)
        yield Case(
            f"{'exp' if k % 5 == 3 else 'sin'} a {a:.2f} b {b:.2f} noise {size}",
            problem,
            draw(),
            draw(),
            lambda x: local_minimiser(objective, policy, x),
            gradient=slope,
            policy=jax.vmap(policy, (None, 0)),
        )


def local_minimiser(objective, policy, x):
    """The stationary point of the population nearest to where a run ended: the problem may have several."""
    return population(objective, policy, x)[0]


# ---- 9: diagnose where the policy vanishes ----


def vanishing(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(9)
    shapes = [
        lambda xi: jnp.sin(6 * xi),
        lambda xi: xi,
        lambda xi: 1 + xi**2,
        lambda xi: jnp.exp(2 * xi),
        lambda xi: jnp.abs(xi - 0.4),
    ]
    for k in range(count):
        shape, size = shapes[k % 5], (0.0, 0.3, 1.0)[k % 3]
        lower = lambda x, y, xi, eta: (y - x * shape(xi) - eta["low"]) ** 2 / 2
        exact = lambda x, y, xi, eta: (y - x * shape(xi)) ** 2 / 2
        problem = cb.Problem(upper_global, lower if size else exact, x0=0.0, y0=0.0, domain=cb.Interval(0.0, 1.0))
        samples = noisy(rng, 2000, ("up", "low"), size or 0.5)

        def check(problem=problem, samples=samples):
            found = cb.diagnose(problem, cb.Chebyshev(8), samples)
            few = [a for a in found.advice if "Chebyshev(1)" in str(a)]
            return ("WRONG", str(few[0])) if few else ("right", "")

        yield Case(f"shape {k % 5} noise {size}", check=check)


# ---- 10: penalties ----


def penalties(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(10)
    for k in range(count):
        cap, size, weight = float(rng.uniform(0.5, 2.0)), float(rng.choice([0.0, 0.2, 0.5])), 1000.0
        basis = (None, cb.Chebyshev(16), cb.Chebyshev(48), None, cb.BSpline(24))[k % 5]
        noise = (lambda eta: 0.0) if size == 0 else (lambda eta: eta["low"])
        lower = lambda x, y, xi, eta: (y - x - 2 * xi - noise(eta)) ** 2 / 2 + weight * jnp.maximum(y - cap, 0.0) ** 2
        upper = lambda x, y, xi, eta: (y - 1 - xi - eta["up"]) ** 2 / 2 + 0.1 * x**2
        free = lambda x, xi: x + 2 * xi
        policy = lambda x, xi: np.where(
            free(x, xi) <= cap, free(x, xi), (free(x, xi) + 2 * weight * cap) / (1 + 2 * weight)
        )
        nodes = (np.arange(200_000) + 0.5) / 200_000
        total = lambda x: np.mean((policy(x, nodes) - 1 - nodes) ** 2) / 2 + 0.1 * x**2
        slopes = lambda x: np.where(free(x, nodes) <= cap, 1.0, 1 / (1 + 2 * weight))
        gradient = lambda x: np.mean((policy(x, nodes) - 1 - nodes) * slopes(x)) + 0.2 * x
        problem = cb.Problem(upper, lower, x0=0.0, y0=0.0, domain=cb.Interval(0.0, 1.0))
        draw = lambda: noisy(rng, 2000, ("up", "low"), size or 0.3)
        grid = np.linspace(-3, 3, 61)
        start = grid[np.argmin([total(x) for x in grid])]
        best = optimize.minimize_scalar(
            total, bounds=(start - 0.2, start + 0.2), method="bounded", options={"xatol": 1e-7}
        ).x
        yield Case(
            f"cap {cap:.2f} noise {size} {basis!r}",
            problem,
            draw(),
            draw(),
            float(best),
            gradient=gradient,
            policy=policy,
            judged=basis is None,
            options={} if basis is None else {"basis": basis},
        )


# ---- 11: the seller of the README ----


def sellers(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(11)
    for k in range(count):
        size, bend, slope = float(rng.choice([0.3, 1.0, 2.0])), float(rng.uniform(1, 8)), 0.8
        mean = lambda w: 5 + 3 * np.sin(bend * w)
        average = float(UNIT_WEIGHTS @ mean(UNIT))
        lost = size / np.sqrt(2 * np.pi)  # E max(-noise, 0)

        def upper(price, stock, weather, demand):
            return 0.5 * stock - price * jnp.minimum(demand - 0.8 * price, stock) + 0.3 * price**2

        def lower(price, stock, weather, demand):
            return (stock - (demand - 0.8 * price)) ** 2

        # F = 0.5 (m - 0.8 p) - p (m - 0.8 p - lost) + 0.3 p^2
        gradient = lambda p: -0.5 * slope - average + 2 * slope * p + lost + 0.6 * p
        best = (0.5 * slope + average - lost) / (2 * slope + 0.6)
        problem = cb.Problem(upper, lower, x0=1.0, y0=0.0, domain=cb.Interval(0.0, 1.0), x_bounds=(0.0, 6.0))

        def draw():
            w = rng.uniform(0, 1, 2000)
            return cb.Samples(w, mean(w) + size * rng.normal(size=2000))

        yield Case(
            f"noise {size} bend {bend:.1f}",
            problem,
            draw(),
            draw(),
            best,
            gradient=gradient,
            policy=lambda p, w: mean(w) - slope * p,
        )


# ---- 12: bounds and kinks as near to the minimiser as its standard error ----


def edges(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(12)
    square = 7 / 3  # E (1 + xi)^2
    for k in range(count):
        kind, truth = ("bound", "kink")[k % 2], float(rng.uniform(0, 0.08))
        weight = 0.6 if kind == "kink" else 0.0
        upper = lambda x, y, xi, eta, w=weight: (y - eta["up"]) ** 2 / 2 + w * jnp.abs(x)
        smooth_upper = lambda x, y, xi, eta: (y - eta["up"]) ** 2 / 2
        problem = cb.Problem(
            upper if weight else smooth_upper,
            lower_linear,
            x0=0.5,
            y0=0.0,
            domain=cb.Interval(0.0, 1.0),
            x_bounds=(0.0, 5.0) if kind == "bound" else None,
        )
        target = truth + weight / square

        def draw():
            xi = rng.uniform(size=500)
            up, low = target * (1 + xi) + rng.normal(size=500), rng.normal(size=500)
            return cb.Samples(xi, {"up": up, "low": low})

        # the gradient of the certificate leaves out what bounds block, and has no one value at a kink
        yield Case(f"{kind} at {truth:.3f}", problem, draw(), draw(), truth, options={"basis": cb.Chebyshev(2)})


# ---- 13: a context of a finite domain seen first, and once only, when judging; and judged on the same samples ----


def seen_once(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(13)
    problem = cb.Problem(
        lambda x, y, g, eta: (y - eta["up"]) ** 2 / 2,
        lambda x, y, g, eta: (y - x - eta["low"]) ** 2 / 2,
        x0=0.0,
        y0=0.0,
        domain=cb.Finite(np.arange(6.0)),
    )
    for k in range(count):
        means = np.append(np.arange(5.0), rng.uniform(0, 50))

        def draw(also):
            g = np.concatenate([np.repeat(np.arange(5), 100), np.full(also, 5, int)])
            low = means[g] + rng.normal(size=len(g))
            return cb.Samples(g.astype(float), {"up": rng.normal(size=len(g)), "low": low})

        train = draw(0)
        judged = train if k % 2 else draw(1)
        there = float(np.mean(means[np.asarray(judged.xi, int)]))
        yield Case(
            f"{means[-1]:.1f}, judged on {'the same' if k % 2 else 'fresh'} samples",
            problem,
            train,
            judged,
            -float(np.mean(means[:5])),
            gradient=lambda x: x + there,
            policy=lambda x, g: x + means[np.asarray(g, int)],
        )


# ---- 14 to 18: lower levels under constraints, or that curve in few places ----
# Intervals of x under a barrier are to hold the truth without one; the certificate is about the problem with the
# barrier, and is not judged.


def minimiser(total: Callable, low: float, high: float) -> float:
    """Of a function of one number, by brute force."""
    grid = np.linspace(low, high, 61)
    near = grid[np.argmin([total(x) for x in grid])]
    ends = (max(near - 0.2, low), min(near + 0.2, high))
    return float(optimize.minimize_scalar(total, bounds=ends, method="bounded", options={"xatol": 1e-8}).x)


def on_simplex(z: np.ndarray) -> np.ndarray:
    """The nearest points of the simplex, row by row."""
    falling = -np.sort(-z, axis=1)
    shift = (np.cumsum(falling, axis=1) - 1) / np.arange(1, z.shape[1] + 1)
    return np.maximum(z - np.take_along_axis(shift, np.sum(falling > shift, axis=1)[:, None] - 1, axis=1), 0)


def constrained(count: int) -> Iterator[Case]:
    rng = np.random.default_rng(14)
    for k in range(count):
        size, shift = float(rng.choice([0.1, 0.3])), float(rng.uniform(-0.5, 0.5))
        if k % 2:  # three shares, of which some are zero at some contexts
            wanted = lambda x, xi: jnp.stack([x * xi, 0.4 - shift * xi, 0.3 + 0 * xi], axis=-1)
            policy = lambda x, xi: on_simplex(np.asarray(wanted(x, xi)))
            goal, limits, y0 = (lambda xi: jnp.stack([0.3 + 0.5 * xi, 0.4 - 0.3 * xi, 0.3 - 0.2 * xi], axis=-1),
                                cb.Simplex(), np.full(3, 1 / 3))  # fmt: skip
        else:
            cap = float(rng.uniform(0.8, 1.6))
            wanted = lambda x, xi: (x + 2 * xi - 0.5)[..., None]
            policy = lambda x, xi, cap=cap: np.clip(np.asarray(wanted(x, xi)), 0, cap)
            goal, limits, y0 = lambda xi: (0.5 + shift + xi)[..., None], cb.Bounds(0.0, cap), np.full(1, 0.3)
        noise = lambda n, y0=y0: size * rng.normal(size=(n, len(y0)))
        draw = lambda n=2000: cb.Samples(rng.uniform(size=n), {"up": noise(n), "low": noise(n)})
        problem = cb.Problem(
            lambda x, y, xi, eta: jnp.sum((y - goal(xi) - eta["up"]) ** 2) / 2 + 0.05 * x**2,
            lambda x, y, xi, eta: jnp.sum((y - wanted(x, xi) - eta["low"]) ** 2) / 2,
            x0=0.5, y0=y0, domain=cb.Interval(0.0, 1.0), constraints=[limits],
        )  # fmt: skip
        target = np.asarray(goal(UNIT))
        total = lambda x: UNIT_WEIGHTS @ np.sum((policy(x, UNIT) - target) ** 2, axis=1) / 2 + 0.05 * x**2
        yield Case(f"{limits!r} noise {size} shift {shift:.2f}", problem, draw(), draw(), minimiser(total, -3, 3))


def held_everywhere(count: int) -> Iterator[Case]:
    """Bounds that bind at every context: the policy does not vary, and ``x`` is what the upper level alone asks for."""
    rng = np.random.default_rng(15)
    for k in range(count):
        bound, size = (0.1, 0.01)[k % 2], (0.0, 0.02, 0.1)[k % 3]
        noise = (lambda eta: eta["low"]) if size else (lambda eta: 0.0)
        problem = cb.Problem(
            lambda x, y, xi, eta: (y - 1 - xi) ** 2 / 2 + (x - 1 - eta["up"]) ** 2 / 20,
            lambda x, y, xi, eta: (y - (x * xi + 0.2 + noise(eta))) ** 2 / 2,
            x0=0.5, y0=float(rng.choice([0.0, 0.05, 0.3])), domain=cb.Interval(0.0, 1.0),
            constraints=cb.Bounds((0.0, -5.0)[k % 2], bound),
        )  # fmt: skip

        def draw():
            n = 1000
            return cb.Samples(rng.uniform(size=n), {"up": 0.3 * rng.normal(size=n), "low": size * rng.normal(size=n)})

        yield Case(f"at most {bound}, noise {size}", problem, draw(), draw(), 1.0)


def newsvendors(count: int) -> Iterator[Case]:
    """A price, and the order at a smoothed quantile of a demand that is uniform on an interval at each context."""
    rng = np.random.default_rng(16)
    for k in range(count):
        width, price, n = (0.1, 0.3)[k % 2], float(rng.uniform(8, 12)), (5000, 2000)[k % 3 == 2]
        low = lambda t: 1.8 + 0.5 * np.sin(2 * np.pi * t)
        reach = lambda t: 3.6 + 0.8 * np.cos(2 * np.pi * t)

        def sold(y, t):  # the mean of the smoothed step, and its slope
            ends = np.stack([y - low(t), y - low(t) - reach(t)]) / width
            rises, steps = np.logaddexp(0, ends), 1 / (1 + np.exp(-ends))
            return width * (rises[0] - rises[1]) / reach(t), (steps[0] - steps[1]) / reach(t)

        def policy(x, t):
            below, above = low(t) - 5.0, low(t) + reach(t) + 5.0
            for _ in range(60):
                y = (below + above) / 2
                less = x - price + price * sold(y, t)[0] < 0
                below, above = np.where(less, y, below), np.where(less, above, y)
            return (below + above) / 2

        def gradient(x):
            y = policy(x, UNIT)
            return UNIT_WEIGHTS @ ((x - 1) / (price * sold(y, UNIT)[1]) - y)

        problem = cb.Problem(
            lambda x, y, xi, eta: -(x - 1) * y,
            lambda x, y, xi, eta: x * y - price * y + price * width * jax.nn.softplus((y - eta) / width),
            x0=price / 2, y0=2.0, domain=cb.Interval(0.0, 1.0),
        )  # fmt: skip

        def draw():
            t = rng.uniform(size=n)
            return cb.Samples(t, low(t) + reach(t) * rng.uniform(size=n))

        best = minimiser(lambda x: -(x - 1) * (UNIT_WEIGHTS @ policy(x, UNIT)), 0.3 * price, 0.97 * price)
        yield Case(f"smoothed over {width}, price {price:.1f}, n {n}", problem, draw(), draw(), best, (), gradient,
                   policy)  # fmt: skip


LABELS = np.array([1.0, -1.0])[:, None]


def logistic(count: int) -> Iterator[Case]:
    """Logistic weights with a penalty each, the logarithm of which noise in the labels above asks for. The adjoint
    vanishes near the optimum, and the objective is flat beyond it: neither is a kink."""
    rng, (nodes, shares) = np.random.default_rng(17), np.polynomial.hermite_e.hermegauss(24)
    points = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass, (t, w) = np.outer(shares, shares).ravel() / shares.sum() ** 2, np.polynomial.legendre.leggauss(12)
    weights = lambda t, xp=np: xp.stack([1 + 0.5 * t, 0.6 + 0.3 * xp.sin(2 * t)], axis=-1)
    truths = {}

    def loss(y, t, flipped):  # its mean, of labels some of which are flipped
        sure = jax.nn.sigmoid(LABELS * (points @ weights(t, jnp)))
        return jnp.sum(mass * (sure * (1 - flipped) + (1 - sure) * flipped) * jnp.logaddexp(0, -LABELS * (points @ y)))

    for k in range(count):
        penalty, flipped, n = (jnp.exp, jax.nn.softplus)[k % 2], (0.2, 0.1)[k % 3 == 2], (800, 2000)[k % 4 > 1]

        def policy(x, t, penalty=penalty):
            below = lambda y: loss(y, t, 0.0) + jnp.sum(penalty(x) * y**2) / 2
            y = jnp.zeros(2)
            for _ in range(8):
                y = y - jnp.linalg.solve(jax.hessian(below)(y), jax.grad(below)(y))
            return y

        if (k % 2, flipped) not in truths:
            upper = lambda x, y, t, flipped=flipped: loss(y, t, flipped)
            truths[k % 2, flipped] = population(upper, policy, [-1.9 if flipped == 0.2 else -2.9] * 2, t, w / 2)
        best, gradient = truths[k % 2, flipped]

        def draw():
            t = rng.uniform(-1, 1, n)

            def labelled(wrong):
                at = rng.normal(size=(n, 2))
                right = rng.uniform(size=n) < 1 / (1 + np.exp(-np.sum(at * weights(t), axis=1)))
                return at, np.where(right, 1.0, -1.0) * np.where(rng.uniform(size=n) < wrong, -1, 1)

            return cb.Samples(t, {"below": labelled(0.0), "above": labelled(flipped)})

        at_one = lambda y, eta: jnp.logaddexp(0, -eta[1] * (eta[0] @ y))
        problem = cb.Problem(
            lambda x, y, xi, eta: at_one(y, eta["above"]),
            lambda x, y, xi, eta, penalty=penalty: at_one(y, eta["below"]) + jnp.sum(penalty(x) * y**2) / 2,
            x0=np.full(2, -2.0), y0=np.zeros(2), domain=cb.Interval(-1.0, 1.0),
        )  # fmt: skip
        yield Case(f"{penalty.__name__}, {flipped} flipped, n {n}", problem, draw(), draw(), best, (), gradient,
                   jax.vmap(policy, (None, 0)))  # fmt: skip


def proportional(count: int) -> Iterator[Case]:
    """Weights of groups, and an upper level that is the lower one with equal weights: at the optimum the adjoint
    vanishes. Of weights as a softmax the sum of ``x`` is not determined; with the first held at 0, all others are 0."""
    rng = np.random.default_rng(18)
    for k in range(count):
        groups, size, pinned = (2, 3, 5)[k % 3], (0.0, 0.1, 0.5)[k // 2 % 3], k % 2 == 1
        logits = lambda x, pinned=pinned: jnp.concatenate([jnp.zeros(1), x]) if pinned else x
        problem = cb.Problem(
            lambda x, y, xi, eta: (y - eta["seen"]) ** 2,
            lambda x, y, xi, eta, logits=logits: (
                jnp.sum(jnp.where(jnp.arange(groups) == eta["group"], jax.nn.softmax(logits(x)), 0))
                * (y - eta["seen"]) ** 2
            ),
            x0=rng.uniform(-0.4, 0.4, groups - pinned), y0=0.0, domain=cb.Interval(-1.0, 1.0),
        )  # fmt: skip
        t, group = rng.uniform(-1, 1, 900), rng.integers(0, groups, 900)
        seen = np.sin(2 * t) + 0.3 * group + size * rng.normal(size=900)

        samples = cb.Samples(t, {"seen": seen, "group": group * 1.0})

        def check(problem=problem, samples=samples, pinned=pinned):
            found = cb.solve(problem, samples)
            said, x = found.uncertainty, np.asarray(found.x)
            off = np.abs(x).max() if pinned else np.ptp(x)
            open_ = [*said.undetermined, *([said.why_not] if said.why_not else [])]
            if off > 1e-4 and found.converged and (not open_ or not pinned):
                return "WRONG", f"off by {off:.2g}"
            if not pinned and np.isfinite(said.error).any() and not open_:
                return "WRONG", f"x = {x} +- {said.error} is not determined"
            return ("undecided", "; ".join(open_ or [str(found.result)])) if open_ or not found.converged else (
                "right", "")  # fmt: skip

        yield Case(f"{groups} groups, noise {size}, {'first held' if pinned else 'softmax'}", check=check)


# ---- what was once surer than right, or withheld (doubt.py, jumps.py) ----


def of_trials(family: str, seed: int) -> Callable[[int], Iterator[Case]]:
    """A family of ``doubt.py``, from a seed on."""

    def cases(count: int) -> Iterator[Case]:
        for k in range(count):
            trial = doubt.FAMILIES[family](seed + k)
            yield Case(trial.label, trial.problem, trial.samples, x=trial.truth)

    return cases


def jumping(stated: bool) -> Callable[[int], Iterator[Case]]:
    """Policies that jump in the context."""

    def cases(count: int) -> Iterator[Case]:
        for k in range(count):
            one = jumps.jumping(5000 + k, (1500, 5000)[k % 2], stated)
            yield Case(one.label, one.problem, one.samples, x=one.truth)

    return cases


FAMILIES = {
    "1 functions that change": (changing, 5, 60),
    "2 instruments": (instruments, 10, 80),
    "3 not determined": (undetermined, 6, 48),
    "4 scales": (scaled, 5, 50),
    "5 single precision": (in_single, 5, 40),
    "6 finite contexts": (groups, 6, 54),
    "7 hidden structure": (hidden, 6, 60),
    "8 smooth": (smooth, 5, 50),
    "9 vanishing policy": (vanishing, 5, 30),
    "10 penalties": (penalties, 5, 50),
    "11 seller": (sellers, 5, 50),
    "12 bounds and kinks": (edges, 10, 60),
    "13 seen once": (seen_once, 6, 30),
    "14 constrained": (constrained, 6, 40),
    "15 bounds that bind": (held_everywhere, 6, 30),
    "16 newsvendors": (newsvendors, 6, 30),
    "17 logistic weights": (logistic, 6, 36),
    "18 proportional levels": (proportional, 6, 30),
    "19 smooth penalties": (of_trials("penalised", 5000), 6, 40),
    "20 true kinks": (of_trials("kinked", 5000), 6, 40),
    "21 smoothed newsvendors": (of_trials("newsvendors", 5000), 6, 40),
    "22 constraints that bind": (of_trials("binding", 5000), 4, 40),
    "23 repeated rows": (of_trials("repeated", 5000), 4, 20),
    "24 jumps, stated": (jumping(True), 4, 30),
    "25 jumps, not stated": (jumping(False), 4, 30),
}


def flat(x) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(x)])


def judge(case: Case) -> tuple[str, str]:
    """One of right, undecided and WRONG, and what there is to say."""
    if case.check is not None:
        return case.check()
    with jax.enable_x64(not case.single):
        found = cb.solve(case.problem, case.train, **case.options)
        said = found.uncertainty
        words = about_x(case, found, said)
        certificate = None
        if case.gradient is not None:
            certificate = cb.certify(case.problem, found, case.fresh)
            words += about_certificate(case, found, certificate)
    wrong = [w for w in words if w.startswith("WRONG")]
    if wrong:
        return "WRONG", "; ".join(w[6:] for w in wrong)
    return ("undecided", "; ".join(words)) if words else ("right", "")


def about_x(case: Case, found, said) -> list[str]:
    open_ = [*said.undetermined, *([said.why_not] if said.why_not else [])]
    open_ += [] if found.converged else [str(found.result)]
    if case.loose:
        sure = [j for j in case.loose if np.isfinite(said.error[j])]
        if sure and not open_:
            return [f"WRONG x[{sure[0]}] = {said.x[sure[0]]:.4g} +- {said.error[sure[0]]:.2g} is not determined"]
        return open_ or ["a standard error is infinite"]
    if not case.judged:
        return [] if found.converged else [str(found.result)]
    at = np.asarray(found.x) if np.ndim(found.x) == 0 and not isinstance(found.x, dict) else flat(found.x)
    truth = np.atleast_1d(case.x(at) if callable(case.x) else case.x)
    lo, hi = said.interval
    wrong = []
    for j, name in enumerate(said.names):
        if not np.isfinite(said.error[j]):
            open_.append(f"{name} has the standard error {said.error[j]}")
        elif not open_ and not holds((lo[j], hi[j]), said.error[j], truth[j], 0.0 if truth[j] else 1.0):
            off = f" ({((lo[j] + hi[j]) / 2 - truth[j]) / said.error[j]:+.3g} se)" if said.error[j] else ""
            wrong.append(f"WRONG {name} = {said.x[j]:.5g} +- {said.error[j]:.2g}, truly {truth[j]:.5g}{off}")
    return open_ or wrong


def about_certificate(case: Case, found, certificate) -> list[str]:
    if certificate.unresolved:
        return [certificate.unresolved]
    x = flat(found.full_parts()[0])
    at = x[0] if np.ndim(found.x) == 0 and not isinstance(found.x, dict) else x
    words = []
    slope = float(np.linalg.norm(case.gradient(at)))
    norm = certificate.gradient_norm
    if not np.isfinite(norm.error):
        words.append("the gradient could not be measured")
    elif not holds(norm.interval, norm.error, slope, certificate.typical * 1e-3):
        words.append(f"WRONG gradient {norm!r}, truly {slope:.4g} ({certificate.mode})")
    if certificate.policy_error is not None:
        xi = np.asarray(case.fresh.xi)
        with jax.enable_x64(True):
            exact = np.asarray(case.policy(at, xi)).reshape(len(xi), -1)
        error = float(np.mean(np.sum((np.asarray(found.policy(xi)).reshape(len(xi), -1) - exact) ** 2, axis=1)))
        size = float(np.mean(np.sum(exact**2, axis=1)))
        if not holds(certificate.policy_error.interval, certificate.policy_error.error, error, 1e-3 * size):
            words.append(f"WRONG policy error {certificate.policy_error!r}, truly {error:.4g} ({certificate.mode})")
    return words


def main() -> int:
    arguments = harness.arguments(
        __doc__,
        ("--runs", "small", None, {"choices": ("small", "full")}),
        ("--only", str, "families by their numbers, separated by commas"),
        ("--count", int, "runs of each family"),
        ("--loud", False, "say what each run came to"),
    )
    warnings.simplefilter("ignore")
    wanted = None if arguments.only is None else arguments.only.split(",")
    names = [name for name in FAMILIES if wanted is None or any(w in name.split() for w in wanted)]
    counts = {name: arguments.count or FAMILIES[name][2 if arguments.runs == "full" else 1] for name in names}
    done, rows, faults = 0, [], []
    with cb.progress.ProgressBar(sum(counts.values()), "confidence") as bar:
        for name in names:
            tally, seconds = {"right": 0, "undecided": 0, "WRONG": 0}, []
            for case in FAMILIES[name][0](counts[name]):
                began = time.perf_counter()
                try:
                    verdict, words = judge(case)
                except Exception as error:
                    verdict, words = "WRONG", f"{type(error).__name__}: {error}"
                    traceback.print_exc()
                seconds.append(time.perf_counter() - began)
                tally[verdict] += 1
                done += 1
                bar.update(done, name)
                if verdict == "WRONG":
                    faults.append(f"{name}: {case.label}: {words}")
                if verdict == "WRONG" or arguments.loud:
                    print(f"  {verdict:<9} {name}: {case.label}: {words}  [{seconds[-1]:.1f} s]", flush=True)
                elif done % 10 == 0:
                    print(f"  {done} of {sum(counts.values())} runs", flush=True)
            rows.append((name, len(seconds), *tally.values(), float(np.median(seconds))))
    rows.append(("total", *(sum(row[k] for row in rows) for k in range(1, 5)), float(np.median([r[5] for r in rows]))))
    print(f"\n{'family':<28}{'runs':>6}{'right':>8}{'undecided':>11}{'WRONG':>8}{'median s':>10}")
    for name, *numbers, middle in rows:
        print(f"{name:<28}{numbers[0]:>6}{numbers[1]:>8}{numbers[2]:>11}{numbers[3]:>8}{middle:>10.1f}")
    held = 100 * SEEN["as printed"] / max(SEEN["intervals"], 1)
    print(f"{SEEN['intervals']} intervals: {held:.1f}% hold the truth as printed; {SEEN['far']} are far off")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
