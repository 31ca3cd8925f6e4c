"""What tracing cannot see of a function is compared by values: by checkpoints too, and never in silence."""

import pickle

import jax
import numpy as np
import pytest

import cobilevel as cb

XI = np.linspace(0.0, 1.0, 60)
TABLE = np.arange(10.0)


def called(function, method="sequential"):
    """A function of Python, without derivatives, inside of one that JAX traces; a row at a time, if nothing is said."""

    def call(v):
        shape = jax.ShapeDtypeStruct((), v.dtype)
        return jax.pure_callback(function, shape, jax.lax.stop_gradient(v), vmap_method=method)

    return call


look_up = called(lambda v: TABLE[(np.asarray(v) * 9.999).astype(int)].astype(np.asarray(v).dtype), "broadcast_all")


def lower(x, y, xi, eta):
    return (y - x - xi) ** 2


def solve(upper, below=lower, **options):
    problem = cb.Problem(upper, below, 0.5, 0.0, cb.Interval(0.0, 1.0))
    return cb.solve(problem, cb.Samples(XI, 0 * XI), basis=cb.Chebyshev(2), **options)


@pytest.mark.parametrize("level", ["upper", "lower"])
def test_a_table_that_changed_is_another_run(tmp_path, monkeypatch, level):
    """All of it, one entry, or the last."""
    functions = {
        "upper": (lambda x, y, xi, eta: (y - look_up(xi)) ** 2 + x**2, lower),
        "lower": (lambda x, y, xi, eta: (y - 1) ** 2 + x**2, lambda x, y, xi, eta: (y - x - look_up(xi)) ** 2),
    }[level]
    table = TABLE
    first = solve(*functions, checkpoint=tmp_path)
    for changed in (slice(None), slice(4, 5), slice(9, 10)):
        monkeypatch.setitem(globals(), "TABLE", table)
        again = solve(*functions, checkpoint=tmp_path)  # the same table: the same run
        assert float(again.x) == float(first.x)
        after = table.copy()
        after[changed] += 1
        monkeypatch.setitem(globals(), "TABLE", after)
        with pytest.raises(ValueError, match=f"holds another run, which differs in: {level}"):
            solve(*functions, checkpoint=tmp_path)


def test_values_that_cannot_be_kept_are_warned_of(tmp_path):
    def near(v):
        assert abs(v) < 0.95, "there is nothing so far out"
        return np.asarray(v)

    seen = called(near)
    solution = solve(lambda x, y, xi, eta: (y - xi) ** 2 + 1e3 * (x - 0.9) ** 2 + 0 * seen(x))
    for keep in (lambda: solution.save(tmp_path / "run.npz"), lambda: pickle.dumps(solution)):
        with pytest.warns(UserWarning, match="no values of the objectives are saved"):
            keep()
