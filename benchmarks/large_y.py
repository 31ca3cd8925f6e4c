"""Large ``y`` with nothing set: hyper-cleaning, and a classifier for every context, with the bound by products.

    python benchmarks/large_y.py cleaning --train 400 --validation 300 --seeds 10
    python benchmarks/large_y.py cleaning --images mnist-size --train 19000 --validation 1000
    python benchmarks/large_y.py users --rows 2000 --features 1000
    python benchmarks/large_y.py trials --images mnist --seeds 20

Prints, per seed, the seconds of the first and the second call, the exact loss at the answer against the best that
L-BFGS finds on exact classifiers (`--best`; for users, on the same reduced objective, as one would write it by hand),
the certificate, and the rate of a product against that of matrices alone. `trials`: the paper's own; what is found is
kept in docs/results, and drawn beside the methods of a report (`--report`).
"""

import argparse
import json
import re
import resource
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from scipy.optimize import minimize

import cobilevel as cb

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def synthetic(count: int, pixels: int, seed: int = 0) -> cb.gallery.Images:
    """Images of ten classes around smooth means, of the size of MNIST's."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(40, pixels)) / np.sqrt(pixels) * np.linspace(3.0, 0.3, 40)[:, None]
    means = rng.normal(size=(10, 40))
    labels = rng.integers(10, size=count)
    pictures = (means[labels] + rng.normal(size=(count, 40)) * 1.5) @ factors + 0.02 * rng.normal(size=(count, pixels))
    return cb.gallery.Images(pictures, labels, pictures[:1000], labels[:1000], "synthetic")


def users(rows: int, features: int, seed: int = 0) -> tuple[cb.Problem, cb.Levels, cb.Levels]:
    """A classifier over many features for every age, with a ridge for each of ten groups of features."""
    rng, groups = np.random.default_rng(seed), 10
    group = np.arange(features) * groups // features
    size = np.array([3, 3, 2, 1, 1, 0.5, 0.2, 0, 0, 0])[group]
    truth = rng.normal(size=(features, 3)) * size[:, None]

    def draw(n: int) -> cb.Samples:
        age, table = rng.uniform(0, 1, n), 3 * rng.normal(size=(n, features)) / np.sqrt(features)
        score = table @ truth[:, 0] + age * (table @ truth[:, 1]) + np.sin(3 * age) * (table @ truth[:, 2])
        label = (rng.uniform(size=n) < 1 / (1 + np.exp(-score))).astype(float)
        return cb.Samples(age, {"features": table, "label": label})

    def loss(x, y, age, eta):
        score = eta["features"] @ y
        return jnp.logaddexp(0, score) - eta["label"] * score

    where = jnp.asarray(group)
    ridge = lambda x, y, age, eta: loss(x, y, age, eta) + jnp.sum(jnp.exp(x)[where] * y**2)
    x0, bounds = jnp.full(groups, -6.0), (-12.0, 2.0)
    problem = cb.Problem(loss, ridge, x0=x0, y0=jnp.zeros(features), domain=cb.Interval(0.0, 1.0), x_bounds=bounds)
    seen = draw(rows)
    return problem, cb.Levels(draw(rows // 2), seen), cb.Levels(draw(rows // 2), seen)


def best_exact(case: cb.gallery.Instance, nodes: int = 24, steps: int = 60) -> tuple[float, float]:
    """The exact loss, by L-BFGS on exact classifiers at Gauss nodes; and the seconds."""
    began = time.perf_counter()
    u, w = np.polynomial.legendre.leggauss(nodes)
    low, high = (float(np.squeeze(end)) for end in case.problem.domain.bounds)
    xi, shares = jnp.asarray(low + (high - low) * (u + 1) / 2), jnp.asarray(w / 2)
    seen, clean = ({k: jnp.asarray(v) for k, v in level.eta.items()} for level in (case.train.lower, case.train.upper))
    ridge, n = case.truth.lower.regulariser, len(seen["label"])
    log_losses = lambda y, data: (
        -jnp.take_along_axis(
            jax.nn.log_softmax(jnp.einsum("np,mpc->mnc", data["image"], y) / xi[:, None, None]),
            jnp.broadcast_to(data["label"], (nodes, len(data["label"])))[..., None],
            axis=2,
        )[..., 0]
    )
    upper = lambda y: shares @ jnp.mean(log_losses(y, clean), axis=1)
    lower = lambda x, y: jnp.sum(log_losses(y, seen) @ jax.nn.sigmoid(x)) / n + ridge * jnp.sum(y**2)

    @jax.jit
    def gradient(x, y, v):
        value, pull = jax.value_and_grad(upper)(y)
        product = lambda v: jax.jvp(lambda y: jax.grad(lower, 1)(x, y), (y,), (v,))[1]
        v = jax.scipy.sparse.linalg.cg(product, pull, v, tol=1e-4, maxiter=3000)[0]
        return value, -jax.grad(lambda x: jax.jvp(lambda y: lower(x, y), (y,), (v,))[1])(x), v

    kept = {"y": None, "v": None}

    def ask(z):
        x = jnp.asarray(z * n)  # a weight is one of n
        kept["y"] = case.truth.fit(x, xi, kept["y"], 1e-6).y
        value, slope, kept["v"] = gradient(x, kept["y"], jnp.zeros_like(kept["y"]) if kept["v"] is None else kept["v"])
        return 1e2 * float(value), 1e2 * n * np.asarray(slope)

    options = {"maxcor": 20, "maxiter": steps, "ftol": 1e-9, "gtol": 1e-10}
    found = minimize(ask, np.zeros(n), jac=True, method="L-BFGS-B", options=options)
    return found.fun / 1e2, time.perf_counter() - began


def by_hand(
    problem: cb.Problem, data: cb.Levels, basis: Any, tolerance: float = 1e-6
) -> tuple[float, list[tuple[float, float]]]:
    """The reduced objective of `users` by L-BFGS: optax's in the coefficients, from those of the last ``x``; SciPy's in
    ``x``, with the adjoint by JAX's conjugate gradients. Its minimum; and seconds and the least so far, as it went on.
    """
    features, groups = len(problem.y0), len(problem.x0)
    where, size = jnp.arange(features) * groups // features, jnp.linalg.norm
    seen, clean = (
        tuple(jnp.asarray(part) for part in (basis(level.xi), level.eta["features"], level.eta["label"]))
        for level in (data.lower, data.upper)
    )
    gram, solver = seen[0].T @ seen[0] / len(seen[0]), optax.lbfgs()

    def loss(W, rows):
        phi, table, label = rows
        score = jnp.sum((table @ W) * phi, axis=1)
        return jnp.mean(jnp.logaddexp(0, score) - label * score)

    lower = lambda x, W: loss(W, seen) + jnp.sum(jnp.exp(x)[where, None] * (W @ gram) * W)

    @jax.jit
    def gradient(x, W, V):
        below = lambda W: lower(x, W)
        least = tolerance * size(jax.grad(below)(jnp.zeros_like(W)))

        def step(now):
            W, state, _, count = now
            value, slope = optax.value_and_grad_from_state(below)(W, state=state)
            move, state = solver.update(slope, state, W, value=value, grad=slope, value_fn=below)
            return optax.apply_updates(W, move), state, size(slope), count + 1

        unfinished = lambda now: (now[2] > least) & (now[3] < 2000)
        W = jax.lax.while_loop(unfinished, step, (W, solver.init(W), jnp.asarray(jnp.inf), 0))[0]
        value, right = jax.value_and_grad(loss)(W, clean)
        product = lambda v: jax.jvp(jax.grad(below), (W,), (v,))[1]
        V = jax.scipy.sparse.linalg.cg(product, right, V, tol=tolerance, maxiter=3000)[0]
        return value, -jax.grad(lambda x: jax.jvp(lambda W: lower(x, W), (W,), (V,))[1])(x), W, V

    zero = jnp.zeros((features, seen[0].shape[1]))
    jax.block_until_ready(gradient(problem.x0, zero, zero))
    kept, course, began = [zero, zero], [], time.perf_counter()

    def ask(x):
        value, slope, *kept[:] = gradient(jnp.asarray(x), *kept)
        course.append((time.perf_counter() - began, min([float(value), *(least for _, least in course)])))
        return float(value), np.asarray(slope)

    bounds = list(zip(*(np.broadcast_to(end, groups) for end in problem.x_bounds), strict=True))
    found = minimize(ask, problem.x0, jac=True, method="L-BFGS-B", bounds=bounds, options={"ftol": 1e-10, "gtol": 1e-8})
    return found.fun, course


def rate(rows: int, columns: int, inner: int) -> float:
    """Operations a second of two products of matrices of the sizes of a product with the Hessian."""
    a, y = (jnp.asarray(np.random.default_rng(0).normal(size=shape)) for shape in ((rows, inner), (inner, columns)))
    many = jax.jit(lambda a, y: jax.lax.fori_loop(0, 20, lambda _, y: 1e-3 * (a.T @ (a @ y)), y))
    jax.block_until_ready(many(a, y))
    began = time.perf_counter()
    jax.block_until_ready(many(a, y))
    return 20 * 4 * rows * inner * columns / (time.perf_counter() - began)


def timed(call, *arguments):
    began = time.perf_counter()
    result = jax.block_until_ready(call(*arguments))
    return result, time.perf_counter() - began


def measured(asked: argparse.Namespace, seed: int) -> dict:
    """All figures of one seed."""
    case = None
    if asked.what == "users":
        problem, data, fresh = users(asked.rows, asked.features, seed)
    else:
        images = synthetic(asked.train + asked.validation, 784) if asked.images == "mnist-size" else asked.images
        sizes = {"train": asked.train, "validation": asked.validation}
        case = cb.gallery.cleaning(seed, images=images, dtype=np.float64, **sizes)
        problem, data, fresh = case.problem, case.train, case.train
    said = {"seed": seed}
    _, said["first"] = timed(lambda: cb.solve(problem, data).x)
    solution, said["second"] = timed(cb.solve, problem, data)
    oracles, rows = solution.stats["oracles"], solution.stats["rows"]
    said |= {"converged": solution.converged, "steps": solution.stats["steps"], "N": solution.basis.size}
    said |= {"objective": float(solution.history["upper"][-1]), "products": oracles["hessian_vector"]["calls"]}
    if case is not None:
        pixels, nodes = problem.y0.shape[0], rows["lower"] // asked.train
        work = 4 * asked.train * pixels * 10 * nodes
        said["GFLOP_of_a_product"], spent = work / 1e9, solution.stats["total_seconds"]
        said["GFLOP_per_s"] = work * said["products"] / spent / 1e9
        said["GFLOP_per_s_of_matrices_alone"] = rate(asked.train, 10 * nodes, pixels) / 1e9
    if asked.certify:
        _, said["certify_first"] = timed(cb.certify, problem, solution, fresh)
        certificate, said["certify_second"] = timed(cb.certify, problem, solution, fresh)
        said |= {"F": float(certificate.objective), "F_interval": certificate.objective.interval}
        if not seed:
            print(certificate)
    if asked.best and case is not None:
        said["best"], said["best_seconds"] = best_exact(case)
        loss = float(cb.evaluate(problem, solution, fresh).loss)
        said |= {"exact": loss, "gap": loss / said["best"] - 1}
    if asked.best and case is None:
        given = lambda: cb.solve(problem, data, basis=solution.basis.basis)
        _, said["with_the_basis_given"] = timed(given)
        said["best"], course = by_hand(problem, data, solution.basis)
        said |= {"best_seconds": course[-1][0], "best_gradients": len(course)}
        said["gap"] = said["objective"] / said["best"] - 1
    return said | {"memory_GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def trials(asked: argparse.Namespace) -> None:
    """The exact loss at the answer to each trial of the paper's experiment, beside that of the paper's methods."""
    import matplotlib.pyplot as plt

    kept = RESULTS / "exact-optimum.json"
    every = json.loads(kept.read_text())
    rows = every.setdefault(asked.images, [])
    for seed in range(len(rows), asked.seeds):
        case = cb.gallery.cleaning(seed, images=asked.images, dtype=np.float64)
        solution, seconds = timed(cb.solve, case.problem, case.train)
        loss, right = float(cb.evaluate(case.problem, solution, case.train).loss), case.truth.found(solution.x)
        rows.append(
            {"seed": seed, "seconds": seconds, "exact": loss, "objective": float(solution.history["upper"][-1])}
        )
        rows[-1] |= {
            "converged": solution.converged,
            "steps": solution.stats["steps"],
            "N": solution.basis.size,
            "AUC": right,
        }
        print(json.dumps(rows[-1]), flush=True)
        kept.write_text(json.dumps(every, indent=1) + "\n")
    losses = np.array([row["exact"] for row in rows])
    report = re.search(r'id="data">(.*?)</script>', asked.report.read_text(), re.S)
    tables = json.loads(report.group(1))["summary"]["tables"]  # pyright: ignore[reportOptionalMemberAccess]
    table = next(table for table in tables if "true F" in table["columns"])
    place = table["columns"].index("true F")
    ends = {row[0]: [float(number) for number in re.findall(r"[\d.]+", row[place])] for row in table["rows"]}
    ends = dict(sorted(ends.items(), key=lambda end: -end[1][0]))
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axes.axvline(losses.mean(), color="0.2", label=f"minimum found, mean of {len(losses)} trials: {losses.mean():.3f}")
    off = 1.96 * losses.std(ddof=1) / np.sqrt(len(losses))
    axes.axvspan(losses.mean() - off, losses.mean() + off, color="0.85")
    for place, (name, (mean, low, high)) in enumerate(ends.items()):
        axes.errorbar(mean, place, xerr=[[mean - low], [high - mean]], fmt="o", color="#1b6ca8")
        axes.annotate(
            f"+{mean / losses.mean() - 1:.0%}", (high, place), (5, 0), textcoords="offset points", va="center"
        )
        print(f"{name}: {mean:.4f}, {mean / losses.mean() - 1:+.1%}")
    axes.set(yticks=range(len(ends)), yticklabels=list(ends), xlabel="exact validation loss, means with 95% intervals")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(0.75, 0.1))
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "figures" / f"beside-the-exact-optimum-{asked.images}.png", dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["cleaning", "users", "trials"])
    for name, number in {"train": 400, "validation": 300, "seeds": 1, "rows": 2000, "features": 1000}.items():
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--images", default="digits")
    parser.add_argument("--report", type=Path, default=RESULTS / "report.html", help="whose methods to draw")
    parser.add_argument("--best", action="store_true", help="also L-BFGS on exact classifiers")
    parser.add_argument("--certify", action="store_true")
    asked = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if asked.what == "trials":
        return trials(asked)
    for seed in range(asked.seeds):
        print(json.dumps(measured(asked, seed), default=float), flush=True)


if __name__ == "__main__":
    main()
