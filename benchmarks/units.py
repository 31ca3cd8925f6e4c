"""The same problem in other units: ``x`` coordinate by coordinate, ``y``, the context, ``f`` and ``g`` times 1e-8 to 1e8.

Nothing is given. The answer and its standard errors must be the same after scaling back. Prints, for each quantity, the
largest relative change of ``x`` and of the errors, and whether the same number of functions was chosen.
"""

import jax.numpy as jnp
import numpy as np

import cobilevel as cb

SCALES = (1e-8, 1e-4, 1e-1, 1e3, 1e8)
ROWS = 1000


def problem_in(x=(1.0, 1.0), y=1.0, xi=1.0, f=1.0, g=1.0):
    """The problem with its quantities measured in other units, and its samples."""
    rng = np.random.default_rng(0)
    z, v = rng.uniform(-1, 1, ROWS), rng.normal(size=ROWS)
    t = np.sin(2 * z) + v
    eta = {"t": t, "o": 1.0 + 0.7 * t + 0.5 * v + 0.5 * rng.normal(size=ROWS)}
    units = jnp.asarray(x)

    def upper(point, policy, context, noise):
        own = point / units
        return f * ((noise["o"] - own[0] - own[1] * policy / y) ** 2 / 2 + 0.01 * jnp.cosh(own[1]))

    def lower(point, policy, context, noise):
        own = point / units
        return g * ((policy / y - noise["t"] - 0.1 * own[0] * context / xi) ** 2 / 2)

    problem = cb.Problem(upper, lower, jnp.zeros(2), 0.0, cb.Interval(-xi, xi))
    return problem, cb.Samples(xi * z, eta)


def main() -> None:
    plain = cb.solve(*problem_in())
    print(plain)
    cases = [
        ("x[0]", "x", 0),
        ("x[1]", "x", 1),
        ("y", "y", None),
        ("xi", "xi", None),
        ("f", "f", None),
        ("g", "g", None),
    ]
    print(f"\n{'quantity':10} {'scale':>8} {'change of x':>12} {'of errors':>12} functions")
    for name, argument, place in cases:
        for scale in SCALES:
            units = np.array([scale if place == k else 1.0 for k in range(2)])
            given = {argument: tuple(units)} if place is not None else {argument: scale}
            found = cb.solve(*problem_in(**given))
            x, error = np.asarray(found.full_parts()[0]) / units, found.standard_error / units
            worst = np.max(np.abs(x / np.asarray(plain.full_parts()[0]) - 1))
            errors = np.max(np.abs(error / plain.standard_error - 1))
            print(f"{name:10} {scale:8.0e} {worst:12.1e} {errors:12.1e} {found.basis.size} ({plain.basis.size})")


if __name__ == "__main__":
    main()
