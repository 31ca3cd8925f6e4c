"""How many functions three index sets need, for policies of two and three context variables.

The lower level is ``(y - target(xi))^2 / 2`` without noise; the policy is fitted to 20,000 uniform contexts and its
root-mean-square error taken on 20,000 others.
"""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import cobilevel as cb

TARGETS = {
    "isotropic: exp(sum xi)": lambda xi: jnp.exp(jnp.sum(xi, axis=-1)),
    "weak coupling: sum cos(3 xi_j) + 0.01 prod xi_j": lambda xi: (
        jnp.sum(jnp.cos(3 * xi), axis=-1) + 0.01 * jnp.prod(xi, axis=-1)
    ),
    "one strong direction: exp(2 xi_1 + 0.1 xi_2 + ...)": lambda xi: jnp.exp(
        2 * xi[..., 0] + 0.1 * jnp.sum(xi[..., 1:], axis=-1)
    ),
}
INDICES = (cb.Tensor(), cb.TotalDegree(), cb.HyperbolicCross())
COUNT, MOST = 20_000, 1200


def error(target, dimension: int, index, n: int) -> tuple[int, float]:
    """``N`` and the error of the fitted policy."""
    domain = cb.Box(-np.ones(dimension), np.ones(dimension))
    train, test = (cb.Uniform(domain).sample(jax.random.key(k), COUNT) for k in range(2))
    problem = cb.Problem(
        upper=lambda x, y, xi, eta: y**2 + x**2,
        lower=lambda x, y, xi, eta: (y - target(xi)) ** 2 / 2 + 0 * x,
        x0=0.0,
        y0=0.0,
        domain=domain,
    )
    solution = cb.solve(problem, cb.Samples(train), basis=cb.Chebyshev(n, index=index), steps=1)
    gap = solution.policy(test) - target(test)
    return solution.basis.size, float(jnp.sqrt(jnp.mean(gap**2)))


def table(target, dimension: int, goal: float = 1e-6) -> dict[str, list[tuple[int, int, float]]]:
    """For each index set, ``(n, N, error)`` for growing ``n`` until the goal is met or there are too many functions."""
    rows = {}
    for index in INDICES:
        name = type(index).__name__
        rows[name] = []
        for n in (2, 3, 4, 6, 8, 10, 12, 16, 24, 32, 48):
            if len(index.table(n, dimension)) > MOST:
                break
            rows[name].append((n, *error(target, dimension, index, n)))
            if rows[name][-1][-1] < goal:
                break
    return rows


def main() -> None:
    for dimension in (2, 3):
        for name, target in TARGETS.items():
            print(f"\n{name}, {dimension} dimensions: n, N functions, root-mean-square error")
            for index, rows in table(target, dimension).items():
                print(f"  {index:15s} " + "  ".join(f"{n}: N={count} {gap:.1e}" for n, count, gap in rows), flush=True)


if __name__ == "__main__":
    main()
