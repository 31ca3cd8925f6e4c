"""Contexts of several kinds: how many functions a policy takes with tensor, additive and adaptive coupling.

Two continuous contexts, the hour of the day and the day of the week, with a policy that is known:

    y*(x, xi) = x + sin(3 load) + wind^2 + cos(2 pi hour / 24) + effect[day] + load cos(2 pi hour / 24) [weekend]

seen through noise in the lower level. The error of a policy is its mean square at fresh contexts; N functions that hold
the policy exactly have sigma^2 N / n on the average.
"""

import time

import jax
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import cobilevel as cb

DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
EFFECT = np.array([0.0, 0.1, 0.2, 0.1, 0.4, -0.8, -1.0])
DOMAIN = cb.Mixed(
    load=cb.Interval(0.0, 1.0), wind=cb.Interval(-1.0, 1.0), hour=cb.Periodic(0.0, 24.0), day=cb.Finite(DAYS)
)
FRESH = 20_000


def truth(contexts, together):
    """The policy less x; `together`: the size of what load, hour and weekend do together."""
    wave = np.cos(2 * np.pi * contexts["hour"] / 24)
    alone = np.sin(3 * contexts["load"]) + contexts["wind"] ** 2 + wave + EFFECT[contexts["day"]]
    return alone + together * contexts["load"] * wave * (contexts["day"] >= 5)


def drawn(rng, rows):
    return {
        "load": rng.uniform(0, 1, rows),
        "wind": rng.uniform(-1, 1, rows),
        "hour": rng.uniform(0, 24, rows),
        "day": rng.integers(0, 7, rows),
    }


def upper(x, y, xi, eta):
    return (y - 1) ** 2 + 0.1 * x**2


def lower(x, y, xi, eta):
    return (y - x - eta) ** 2


def bases():
    """Couplings with growing numbers of functions; the default last."""
    parts = lambda n, waves: {
        "load": cb.Chebyshev(n), "wind": cb.Chebyshev(n), "hour": cb.Fourier(waves), "day": cb.Categorical()
    }  # fmt: skip
    for n, waves in ((2, 3), (3, 3), (4, 3), (5, 3)):
        yield "tensor", cb.Components(parts(n, waves))
    for n, waves in ((2, 3), (3, 3), (4, 3), (5, 3), (7, 5), (10, 9)):
        yield "additive", cb.Components(parts(n, waves), coupling=cb.Additive())
    for n, waves in ((3, 3), (4, 3), (5, 3)):
        yield "interactions 2", cb.Components(parts(n, waves), coupling=cb.Interactions(2))
    yield "interactions 3", cb.Components(parts(4, 3), coupling=cb.Interactions(3))
    for n in (3, 4, 5):
        yield "total degree", cb.Chebyshev(n, index=cb.TotalDegree())
    yield "adaptive (default)", None


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--rows", 20_000),
        ("--noise", 0.3),
        ("--together", float, None, {"nargs": "+", "default": [0.0, 1.0]}),
        ("--seeds", 3),
    )
    problem = cb.Problem(upper, lower, x0=0.0, y0=0.0, domain=DOMAIN)
    for together in arguments.together:
        print(f"{arguments.rows} rows, noise {arguments.noise:g}, {together:g} of load x hour x weekend")
        print(f"{'coupling':20s} {'N':>6s} {'policy error':>13s} {'sigma^2 N/n':>12s} {'seconds':>8s}")
        means = {}
        for name, basis in bases():
            sizes, errors, began = [], [], time.perf_counter()
            for seed in range(arguments.seeds):
                rng = np.random.default_rng(seed)
                seen, fresh = drawn(rng, arguments.rows), drawn(rng, FRESH)
                eta = truth(seen, together) + arguments.noise * rng.normal(size=arguments.rows)
                samples = cb.Samples(seen | {"day": np.array(DAYS)[seen["day"]]}, eta)
                found = cb.solve(problem, samples, basis=basis)
                wanted = float(found.x) + truth(fresh, together)
                errors.append(float(np.mean((np.asarray(found.policy(fresh)) - wanted) ** 2)))
                sizes.append(found.basis.size)
            error, size, spent = np.mean(errors), np.mean(sizes), (time.perf_counter() - began) / arguments.seeds
            means[name] = min(error, means.get(name, np.inf))
            least = arguments.noise**2 * size / arguments.rows
            print(f"{name:20s} {size:6.1f} {error:13.3g} {least:12.3g} {spent:8.1f}", flush=True)
        best = min(error for name, error in means.items() if "default" not in name)
        print(f"the default's error is {means['adaptive (default)'] / best:.2f} times the least of the others")
        print(f"its functions, in the last case: {found.basis.basis.basis.coupling.members}\n", flush=True)


if __name__ == "__main__":
    main()
