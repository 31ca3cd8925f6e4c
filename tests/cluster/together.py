"""What the processes of the tests run: solves on spread samples, or messages without end."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import cobilevel as cb

ROWS = 203  # no multiple of anything


def stated(cluster, own):
    """Weighted samples, in shares where each process is to have its own."""
    rng = np.random.default_rng(0)
    xi, eta, weights = rng.uniform(size=ROWS), rng.normal(size=(ROWS, 2)), rng.uniform(size=ROWS)
    weights[::7] = 0
    problem = cb.Problem(
        lambda x, y, xi, eta: (y - jnp.sin(6 * xi) - eta[0]) ** 2 / 2 + 0.05 * x**2,
        lambda x, y, xi, eta: (y - x * jnp.exp(xi) - eta[1]) ** 2 / 2 + 0.01 * y**4,
        x0=0.3,
        y0=0.0,
        domain=cb.Interval(0.0, 1.0),
    )
    samples = cb.Samples(xi, eta, weights)
    if own:
        ends = [0, 60, ROWS] if cluster.processes == 2 else [0, ROWS]
        samples = samples.rows(slice(*ends[cluster.process : cluster.process + 2]))
    return problem, cb.spread(samples, own=own)


def solve(out, *kinds):
    """Solves by the kinds named, and writes what came out, every bit of it."""
    cluster, found = cb.cluster.join(), {}
    for kind in kinds:
        problem, samples = stated(cluster, "own" in kind)
        given = {"solver": cb.SOBA(inner=0.1, linear=0.1, outer=0.05, batch=32), "steps": 60} if "SOBA" in kind else {}
        basis = cb.Orthonormal(cb.Chebyshev(4)) if "SOBA" in kind else cb.Chebyshev(4)
        solution = cb.solve(problem, samples, basis, progress=False, **given)
        found[kind] = {
            "x": float(solution.x),
            "bits": np.asarray(solution.x).tobytes().hex() + np.asarray(solution.W).tobytes().hex(),
            "rows": solution.stats["rows"]["lower"],
            "samples": solution.stats["samples"],
            "error": float(solution.standard_error) if "error" in kind else None,
        }
    if cluster.first:
        Path(out).write_text(json.dumps(found))


def keep(out, folder, steps):
    """A run of many steps that is kept; how far it has come is seen from its checkpoint."""
    cluster = cb.cluster.join()
    problem, samples = stated(cluster, False)
    given = cb.SOBA(inner=0.01, linear=0.01, outer=0.001, batch=8)
    solution = cb.solve(problem, samples, cb.Chebyshev(4), given, int(steps), progress=False, checkpoint=folder)
    if cluster.first:
        Path(out).write_text(np.asarray(solution.x).tobytes().hex() + np.asarray(solution.W).tobytes().hex())


def talk(out):
    """Messages without end; that they have begun is written."""
    cluster = cb.cluster.join()
    cluster.gathered([np.zeros(3)])
    Path(f"{out}.{cluster.process}").touch()
    while True:
        cluster.gathered([np.zeros(3)])


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    {"solve": solve, "keep": keep, "talk": talk}[sys.argv[1]](*sys.argv[2:])
