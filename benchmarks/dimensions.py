"""Many covariates: the default and each family of functions, ``Neural``, and gradient-boosted predict-then-optimise.

The lower level is quadratic with noise, ``g = (y - x - eta)^2 / 2`` with ``eta = h(xi) + noise``, so that the policy
``y* = x + h`` is known; ``h`` has variance 1 and the noise a standard deviation of one half. Truths: additive; additive
with one interaction; along two directions; all coordinates coupled, as a bump and as a product. The error of a policy
is its mean square at 5000 fresh contexts, relative to the variance of the policy. The boosted baseline predicts the
mean of ``eta`` given ``xi`` (scikit-learn, ``HistGradientBoostingRegressor()``) and solves the lower level from that.

``--quick``: fewer cases, a few minutes. Times are processor seconds with compilation, of the first solve of its shape.
"""

import os
import time
import warnings

import harness

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processor seconds count threads that wait

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import cobilevel as cb

NOISE, FRESH = 0.5, 5000
METHODS = ("default", "additive", "pairs", "Rotated(2)", "KernelFeatures(64)", "Neural(16)", "boosted")


def _truth(kind, d):
    rng = np.random.default_rng(7)
    axes = np.linalg.qr(rng.normal(size=(d, 2)))[0]
    shapes = {
        "additive": lambda u: np.sin(2 * u[:, 0]) + u[:, 1] ** 2 + np.exp(u[:, 2]) / 2 + np.cos(3 * u[:, 3]) / 2,
        "interaction": lambda u: u[:, 0] + np.sin(2 * u[:, 1]) + 2 * u[:, 2] * u[:, 3] * np.exp(u[:, 2] / 2),
        "directions": lambda u: np.sin(2.5 * u @ axes[:, 0]) + 1.5 * (u @ axes[:, 1]) ** 2 + np.prod(u @ axes, axis=1),
        "bump": lambda u: np.exp(-3 * np.mean(u**2, axis=1)),
        "product": lambda u: np.prod(1 + 1.6 * np.sin(2 * u) / np.sqrt(d), axis=1),
    }
    values = shapes[kind](rng.uniform(-1, 1, (200_000, d)))
    return lambda u: (shapes[kind](u) - values.mean()) / values.std()


def lower(x, y, xi, eta):
    return (y - x - eta) ** 2 / 2


def upper(x, y, xi, eta):
    return (y - 1 - xi[0] / 2) ** 2 / 2 + 0.05 * x**2


def _bases(d, rows):
    """Those given by hand, and the default; ``None`` where a method is not a basis."""
    most = max(n for n in range(1, 9) if 1 + d * n + d * (d - 1) // 2 <= rows // 8)
    additive = [tuple(int(k) for k in j * np.eye(d, dtype=int)[i]) for i in range(d) for j in range(1, most + 1)]
    pairs = [tuple(int(k) for k in np.eye(d, dtype=int)[[i, j]].sum(axis=0)) for i in range(d) for j in range(i)]
    listed = lambda members: cb.Chebyshev(most + 1, index=cb.Listed([(0,) * d, *members]))
    return {
        "default": None,
        "additive": cb.Orthonormal(listed(additive)),
        "pairs": cb.Orthonormal(listed(additive + pairs)),
        "Rotated(2)": cb.Orthonormal(cb.Rotated(2)),
        "KernelFeatures(64)": cb.Orthonormal(cb.KernelFeatures(64)),
        "Neural(16)": cb.Neural(16),
    }


def _boosted(u, eta, fresh):
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor().fit(u, eta).predict(fresh)


def _case(kind, d, rows, wanted):
    """A row of the table for each method."""
    h, rng = _truth(kind, d), np.random.default_rng(0)
    u, fresh = rng.uniform(-1, 1, (rows, d)), rng.uniform(-1, 1, (FRESH, d))
    eta = h(u) + NOISE * rng.normal(size=rows)
    problem = cb.Problem(upper, lower, 0.5, 0.0, cb.Box(-np.ones(d), np.ones(d)))
    for name, basis in _bases(d, rows).items():
        if name not in wanted:
            continue
        began = time.process_time()
        found = cb.solve(problem, cb.Samples(u, eta), basis=basis)
        spent = time.process_time() - began
        error = np.mean((np.asarray(found.policy(fresh)) - float(found.x) - h(fresh)) ** 2)
        chosen = type(found.basis.basis.basis).__name__ if basis is None else ""
        yield name, error, found.stats["functions"], spent, chosen
    if "boosted" not in wanted:
        return
    began = time.process_time()
    error = np.mean((_boosted(u, eta, fresh) - h(fresh)) ** 2)
    yield "boosted", error, None, time.process_time() - began, ""


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--quick", False, "dimensions 6 and 20, 2000 rows, and no network but once"),
        ("--dimensions", int, "these alone", {"nargs": "*"}),
        ("--rows", int, "so many samples alone", {"nargs": "*"}),
        ("--methods", str, "these alone", {"nargs": "*"}),
    )
    warnings.simplefilter("ignore")
    dimensions, sizes = ((6, 20), (2000,)) if arguments.quick else ((6, 10, 20), (2000, 20_000))
    for rows in arguments.rows or sizes:
        for d in arguments.dimensions or dimensions:
            for kind in ("additive", "interaction", "directions", "bump", "product"):
                skip = {"Neural(16)"} if arguments.quick and (d > 6 or kind != "directions") else set()
                wanted = set(arguments.methods or METHODS) - skip
                for name, error, functions, spent, chosen in _case(kind, d, rows, wanted):
                    count = "" if functions is None else f"{functions}"
                    print(
                        f"| {rows} | {d} | {kind} | {name} | {error:.4f} | {count} | {spent:.1f} | {chosen} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
