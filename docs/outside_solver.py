"""A bilevel solver written outside the package, in plain JAX, that solves a contextual problem after reduction.

It knows ``reduced.upper``, ``reduced.lower``, the two pools, the starting point, and nothing else of cobilevel: any
solver for ordinary stochastic bilevel problems can be put in its place. Run: ``python docs/outside_solver.py``.
"""

import jax
import jax.numpy as jnp


def my_bilevel_solver(upper, lower, upper_pool, lower_pool, x, W, steps=10_000, batch=128, inner=0.05, outer=0.05):
    """Single loop: one stochastic step for the lower level, one for the adjoint ``v``, one for ``x``; all decaying."""
    upper_rows, lower_rows = len(jax.tree.leaves(upper_pool)[0]), len(jax.tree.leaves(lower_pool)[0])
    descend = lambda point, rate, direction: jax.tree.map(lambda p, d: p - rate * d, point, direction)

    def step(carry, k):
        x, W, v = carry
        for_upper, for_lower = jax.random.split(jax.random.fold_in(jax.random.key(0), k))
        i = jax.random.randint(for_upper, (batch,), 0, upper_rows)
        j = jax.random.randint(for_lower, (batch,), 0, lower_rows)
        upper_batch = jax.tree.map(lambda a: a[i], upper_pool)
        lower_batch = jax.tree.map(lambda a: a[j], lower_pool)
        slope = lambda x, W: jax.grad(lower, argnums=1)(x, W, lower_batch)
        d2g, pull_back = jax.vjp(slope, x, W)  # the Hessian is symmetric, so one pull-back gives both products with v
        cross, hessian_v = pull_back(v)
        d1f, d2f = jax.grad(upper, argnums=(0, 1))(x, W, upper_batch)
        fade = (1 + k / 300) ** -0.5
        W_next = descend(W, inner * fade, d2g)
        v_next = descend(v, inner * fade, jax.tree.map(jnp.subtract, hessian_v, d2f))
        x_next = descend(x, outer * fade, jax.tree.map(jnp.subtract, d1f, cross))
        return (x_next, W_next, v_next), None

    (x, W, _), _ = jax.lax.scan(step, (x, W, jax.tree.map(jnp.zeros_like, W)), jnp.arange(steps))
    return x, W


def main():
    import cobilevel as cb

    instance = cb.gallery.quadratic(2, dx=2, dy=2, train=1000, condition=5.0)
    reduced = cb.reduce(instance.problem, cb.Chebyshev(5), instance.train)
    solve = jax.jit(lambda: my_bilevel_solver(
        reduced.upper, reduced.lower, reduced.upper_pool, reduced.lower_pool, reduced.x0, reduced.W0
    ))  # fmt: skip
    solution = reduced.lift(*solve())
    best = cb.solve(instance.problem, instance.train, basis=cb.Chebyshev(5))
    print("outside solver  x =", solution.x)
    print("Newton          x =", best.x)
    return solution, best


if __name__ == "__main__":
    main()
