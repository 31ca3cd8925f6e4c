"""How often the 95% interval of the policy covers, at samples from few to many for each function.

Noise grows with the context; the policy lies in the basis, so that noise is all there is. Run on its own:
``python benchmarks/policy_coverage.py``.
"""

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import cobilevel as cb

REPLICATES = 200
CASES = ((60, 6), (120, 6), (400, 4))  # samples, functions
AT = np.linspace(0, 1, 11)


def demand(xi):
    return 5 + 3 * xi - 4 * xi**2


def seller(x, y, xi, eta):
    return 0.5 * y - x * jnp.minimum(eta - 0.8 * x, y) + 0.3 * x**2


def keeper(x, y, xi, eta):
    return (y - (eta - 0.8 * x)) ** 2


def main():
    problem = cb.Problem(seller, keeper, x0=1.0, y0=0.0, domain=cb.Interval(0.0, 1.0), x_bounds=(0.0, 6.0))
    print("samples  functions  covered: mean  least over contexts  standard error / spread of the policy")
    for rows, functions in CASES:
        off, errors = [], []
        for seed in range(REPLICATES):
            rng = np.random.default_rng(seed)
            xi = rng.uniform(size=rows)
            eta = demand(xi) + (0.3 + 1.5 * xi) * rng.normal(size=rows)
            solution = cb.solve(problem, cb.Samples(xi, eta), basis=cb.Chebyshev(functions))
            off.append(np.asarray(solution.policy(AT)) - demand(AT) + 0.8 * float(solution.x))
            errors.append(solution.policy_standard_error(AT))
        inside = np.mean(np.abs(off) <= 1.96 * np.asarray(errors), axis=0)
        ratio = np.mean(np.mean(errors, axis=0) / np.std(off, axis=0))
        print(f"{rows:7d}  {functions:9d}  {inside.mean():13.3f}  {inside.min():19.3f}  {ratio:.2f}")


if __name__ == "__main__":
    main()
