"""Features of contexts that hold values now are computed in NumPy, without a program; traced ones have the same."""

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import base, whiten
from cobilevel.problem import enter

COMPILED = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **__: COMPILED.append(event) if event.endswith("backend_compile_duration") else None
)
RNG = np.random.default_rng(0)
WORDS = np.array(["a", "b", "c"])
WEIGHTS = [np.array(RNG.normal(size=shape)) for shape in ((2, 8), (9, 3))]
PARTS = {"w": cb.Chebyshev(4), "h": cb.Fourier(5), "d": cb.Categorical(), "m": cb.BSpline(5)}
MIXED = cb.Components(PARTS, coupling=cb.Interactions(2))
LINES = (
    cb.Chebyshev(6),
    cb.Legendre(5),
    cb.Monomial(4),
    cb.Fourier(5),
    cb.Partition(3),
    cb.Partition(70),
    cb.BSpline(6),
    cb.Union([cb.Chebyshev(3), cb.Partition(4)]),
    cb.Orthonormal(cb.Chebyshev(5)),
    cb.Neural(4, layers=WEIGHTS),
    cb.Snapshot(3, rich=cb.Chebyshev(8), table=WEIGHTS[0].T[:, :1]),
    cb.KernelFeatures(4, axes=np.eye(1), landmarks=RNG.normal(size=(9, 1)), table=WEIGHTS[1]),
    cb.Rotated(1, cb.Chebyshev(4), axes=np.array([[0.5]]), shift=np.array([0.1])),
)


def drawn(domain, size):
    """Contexts of a domain."""
    if isinstance(domain, cb.Mixed):
        return {"w": RNG.uniform(size=size), "h": 30 * RNG.uniform(size=size), "d": RNG.choice(WORDS, size),
                "m": RNG.normal(size=size)}  # fmt: skip
    if isinstance(domain, cb.Finite):
        return domain.values[RNG.integers(0, len(domain.values), size)]
    return RNG.uniform(0, 1, (size, *domain.shape))


@pytest.mark.parametrize(
    ("domain", "bases"),
    [
        (cb.Interval(0.0, 1.0), LINES),
        (cb.Periodic(0.0, 0.5), (cb.Fourier(5), cb.Chebyshev(3))),
        (cb.Unbounded(0.5, 2.0), (cb.Chebyshev(5), cb.Orthonormal(cb.Legendre(4)))),
        (cb.Finite([0.5, 0.25, 3.0, 8.0, 1.5]), (cb.Categorical(), cb.Chebyshev(3))),
        (cb.Finite(np.arange(80)), (cb.Categorical(),)),
        (cb.Finite(RNG.normal(size=(7, 2))), (cb.Categorical(), cb.Chebyshev(3, index=cb.TotalDegree()))),
        (cb.Box([0.0, 0.0], [1.0, 2.0]), (cb.Chebyshev(4, index=cb.TotalDegree()), cb.Partition(9), cb.BSpline(4))),
        (
            cb.Mixed(w=cb.Interval(0.0, 1.0), h=cb.Periodic(0.0, 24.0), d=cb.Finite(["a", "b", "c"]), m=cb.Unbounded()),
            (MIXED, cb.Orthonormal(MIXED)),
        ),
    ],
    ids=lambda given: type(given).__name__ if hasattr(given, "contains") else "",
)  # fmt: skip
def test_nothing_is_compiled_and_traced_features_are_the_same(domain, bases, monkeypatch):
    given = {size: drawn(domain, size) for size in (5, 41, 300)}
    observed = enter(domain, given[300], data=True).values
    weights = jax.device_put(RNG.uniform(0.5, 2.0, 300))
    monkeypatch.setattr(base, "NUMBERS_AT_ONCE", 64)  # in many blocks
    before, found = len(COMPILED), []
    for basis in bases:
        fitted = basis.fit(domain, observed, weights)
        for xi in given.values():
            rows = fitted.rows(enter(domain, xi, data=True).values)
            whiten(rows).unseen(rows)
            found.append((fitted, xi, fitted(xi)))
    assert len(COMPILED) == before
    for fitted, xi, phi in found[::3]:
        assert isinstance(phi, jax.Array)
        assert phi.dtype == fitted.constant.dtype
        np.testing.assert_allclose(
            jax.jit(lambda a, fitted=fitted: fitted(a))(enter(domain, xi, data=True).values),
            phi,
            rtol=1e-12,
            atol=1e-12,
        )
        np.testing.assert_allclose(
            np.asarray(fitted.rows(enter(domain, xi, data=True).values)), phi, rtol=1e-12, atol=1e-12
        )


def test_a_users_functions_are_compiled_once():
    domain = cb.Interval(0.0, 1.0)
    fitted = cb.Features(lambda xi: jnp.stack([jnp.ones_like(xi), xi, jnp.cos(xi)]), 3).fit(domain, drawn(domain, 7))
    before = len(COMPILED)
    for size in (1, 30, 1024, 2500):
        xi = drawn(domain, size)
        np.testing.assert_allclose(fitted(xi), np.stack([np.ones(size), xi, np.cos(xi)], axis=1), rtol=1e-14)
    assert fitted(np.zeros(0)).shape == (0, 3)
    assert len(COMPILED) == before


def test_contexts_outside_are_nan_without_a_warning():
    far = np.array([np.nan, np.inf, -np.inf, 1e300, 0.25])
    for basis in LINES:
        phi = np.asarray(basis.fit(cb.Interval(0.0, 1.0), np.linspace(0, 1, 100))(far))
        assert np.all(np.isnan(phi[:4]))
        assert np.all(np.isfinite(phi[4]))
    turning = np.asarray(cb.Fourier(5).fit(cb.Periodic(0.0, 1.0), np.linspace(0, 1, 100))(far))
    assert np.all(np.isnan(turning[:3]))
    assert np.all(np.isnan(turning[3]))  # its digits do not say where in a turn it lies
    assert np.all(np.isfinite(turning[4]))
