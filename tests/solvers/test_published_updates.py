"""Every solver, step by step, against its published update as ``published`` has it in plain NumPy."""

from functools import cache
from types import SimpleNamespace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.derivatives import Ledger
from cobilevel.ground.programs import program
from cobilevel.iteration import Scales, Start, stochastic
from cobilevel.reduction import batches
from cobilevel.solvers import STOCHASTIC, newton
from published import (
    BOUNDS,
    EPS,
    ETA,
    KEY,
    POOL,
    PUBLISHED,
    ROWS,
    SCALES,
    SMALL,
    STEPS,
    V0,
    W0,
    X0,
    XI,
    Batches,
    adjoint,
    conjugate_gradients,
    f2,
    g2,
    g22,
    hypergradient,
    lower,
    minimiser,
    rows_of_batch,
    upper,
    value_at,
)


@pytest.fixture(scope="module", autouse=True)
def listed_rows():
    with pytest.MonkeyPatch.context() as patch:
        for module in (batches, stochastic):
            patch.setattr(module, "batch_rows", rows_of_batch)
        yield


# as they are given: first value, and power of the decay, a different one for each
GIVEN = {
    "inner": (0.16, 0.5),
    "linear": (0.13, 0.3),
    "outer": (0.21, 0.7),
    "momentum": (0.6, 0.4),
    "penalty": (4.0, -0.2),
    "convex": (1.9, 0.1),
    "radius": (0.3, 0.15),
    "neumann": (0.2, 0.25),
}
COUNTS = {
    "inner_steps": 2,
    "linear_steps": 3,
    "terms": 3,
    "period": 2,
    "large": 10,
    "probability": 0.4,
    "difference": 1e-2,
}
NAMES = {"inner_steps": "T", "linear_steps": "M", "terms": "K"}


@cache
def reduced(tight):
    problem = cb.Problem(upper, lower, X0, np.zeros(2), cb.Interval(-1.0, 1.0), x_bounds=BOUNDS[tight])
    data = cb.Levels(*(cb.Samples(XI[level], ETA[level]) for level in ROWS))
    found = cb.reduce(problem, cb.Chebyshev(3), data)
    return eqx.tree_at(lambda r: r.W0, found, jnp.asarray(W0))


@program
def one_step(solver, problem, state):
    """As the loop takes it, without what it keeps to judge a run by."""
    paged = eqx.tree_at(lambda s: s.ledger, state, Ledger.page(), is_leaf=lambda leaf: leaf is None)
    after = solver.step(problem, paged)
    kept = lambda s: (s.clock.step, s.ledger, s.trend, s.average)
    return eqx.tree_at(kept, after, (state.step + 1, None, state.trend, state.average))


def in_library(solver, tight):
    """The states of a run of the library, one for each step."""
    problem = reduced(tight).ordinary()  # in coefficients as they are
    scales = Scales(**{name: jnp.asarray(value) for name, value in SCALES.items()})
    start = Start(scales, jnp.asarray(W0), jnp.asarray(V0), Ledger.empty(), np.True_, np.True_)
    state = eqx.tree_at(lambda s: s.ledger, solver._first(problem, start, KEY, jnp.int32(1000)), None)
    for _ in range(STEPS):
        state = one_step(solver, problem, state)
        yield state


class Rates:
    """All step sizes at a step."""

    def __init__(self, schedules, k):
        self.schedules = schedules
        vars(self).update({name: self.of(name, k) for name in schedules})

    def of(self, name, k):
        one = self.schedules[name]
        return one(k) if callable(one) else one


def by_hand(update, schedules, settings, size, tight):
    """The same in plain NumPy."""
    z, draw = SimpleNamespace(x=X0, W=W0, v=V0), Batches(size)
    for k in range(STEPS):
        draw.step = k
        vars(z).update(settings)
        z = update(z, draw, Rates(schedules, k), lambda x: np.clip(x, *BOUNDS[tight]))
        yield z


def agree(solver, update, schedules, settings, tight=False, rtol=1e-12):
    """Step by step, to rounding."""
    plain = by_hand(update, schedules, settings, solver.batch, tight)
    for k, (found, wanted) in enumerate(zip(in_library(solver, tight), plain, strict=True)):
        for name in ("x", "W"):
            value = getattr(wanted, name)
            np.testing.assert_allclose(
                getattr(found, name), value, rtol=rtol, atol=rtol * np.max(np.abs(value)), err_msg=f"{name}, step {k}"
            )
    assert np.any(np.abs(wanted.x - X0) > 0.03), "x has not moved"


ALL = pytest.mark.parametrize("name", list(PUBLISHED))


# those whose series are as long as the scales say, in what is else given; the others have series as given
LEFT_OUT = ("SUSTAIN", "MRBO")


@ALL
def test_on_batches_with_steps_that_are_given(name):
    """Constant and decaying steps, and against a bound; one program."""
    kind, (update, defaults, wanted) = getattr(cb, name), PUBLISHED[name]
    unset = ("neumann", "terms") if name in LEFT_OUT else ()
    counts = {key: value for key, value in COUNTS.items() if hasattr(kind, key) and key not in unset}
    settings = {key: value for key, value in wanted.items() if name in LEFT_OUT and key == "K"}
    settings |= {NAMES.get(key, key): value for key, value in counts.items()}
    chosen = [key for key in GIVEN if (key in defaults or hasattr(kind, key)) and key not in unset]
    for decays, tight in ((False, False), (True, False), (True, True)):
        own = {key: cb.PolynomialDecay(GIVEN[key][0], GIVEN[key][1] * decays, 2.0) for key in chosen}
        solver = kind(batch=SMALL, tolerance=None, **counts, **own)
        plain = lambda value, power: lambda k: value * (1 + k / 2) ** -power
        schedules = {key: plain(GIVEN[key][0], GIVEN[key][1] * decays) for key in chosen}
        schedules |= {key: wanted[key] for key in unset if key in wanted}
        agree(solver, update, schedules, settings, tight)


@pytest.mark.parametrize("name", ["BSA", "VRBO", "SPABA", "FdeHBO"])
def test_on_all_samples_with_steps_from_the_scales(name):
    """Those that do more with what is left out than take the rates of a step from the scales."""
    update, schedules, settings = PUBLISHED[name]
    series = {key: value for key, value in settings.items() if key == "neumann"}
    solver = getattr(cb, name)(batch=24, tolerance=None)
    rtol = 1e-9 if name == "FdeHBO" else 1e-12  # short differences magnify rounding
    agree(solver, update, schedules | series, settings, rtol=rtol)


@ALL
def test_what_is_left_out_is_as_published(name):
    """The rates of each step, and how often things are done in it."""
    solver, (_, schedules, settings) = getattr(cb, name)(batch=24), PUBLISHED[name]
    scales = Scales(**{key: np.asarray(value) for key, value in SCALES.items()})
    state = SimpleNamespace(scales=scales, dtype=np.dtype(float), outer=SimpleNamespace(pace=1.0))
    own = {"inner"} if name == "BSA" else set()  # whose inner steps are numbered by themselves
    for k in range(STEPS):
        plain, rates = Rates(schedules, k), vars(solver.rates(state, np.int32(k)))
        wanted = {key: getattr(plain, key) for key in schedules if key not in own}
        assert {key: float(rates[key]) for key in rates if key not in own} == pytest.approx(wanted, rel=1e-12)
    names = {short: long for long, short in NAMES.items()}
    for key in set(settings) & {"T", "M", "period", "large"}:
        assert getattr(solver, names.get(key, key)) == settings[key]


def test_nothing_is_left_out():
    assert {kind.__name__ for kind in STOCHASTIC} == {*PUBLISHED, "HOAG"}


@pytest.mark.parametrize("outer", [0.3, 1.2])
def test_hoag(outer):
    """With solutions to rounding; and as published, to an accuracy that falls: the rest follows from what it found."""
    default = cb.HOAG().defaults(SimpleNamespace(bend=4.0))
    np.testing.assert_allclose([default["outer"], *map(default["accuracy"], (0, 3))], [0.25, 0.1, 0.0729])
    first, lengths = np.linalg.norm(g2(X0, W0, POOL["lower"])), set()
    for exact in (True, False):
        accuracy = (lambda k: EPS**0.75) if exact else lambda k: 0.1 / (1 + k)
        solver = cb.HOAG(outer=outer, accuracy=cb.PolynomialDecay(accuracy(0), 0.0 if exact else 1.0), tolerance=None)
        x, W, v, stretch, before, promised = X0, W0, V0, 1.0, np.nan, 0.0
        for k, found in enumerate(in_library(solver, False)):
            W = minimiser(x, W) if exact else np.asarray(found.W)
            assert np.linalg.norm(g2(x, np.asarray(found.W), POOL["lower"])) <= accuracy(k) * first
            H, b = g22(x, W, POOL["lower"]), f2(x, W, POOL["upper"]).ravel()
            v = conjugate_gradients(H, b, v.ravel(), accuracy(k)).reshape(3, 2)
            value, h = value_at(x, W), hypergradient(x, W, v)
            if value > before + accuracy(k) * abs(before):
                stretch = stretch / 2
            elif value <= before - promised / 4:
                stretch = min(1.05 * stretch, 10.0)
            lengths.add(stretch)
            x, before, promised = x - outer * stretch * h, value, outer * stretch * h @ h
            np.testing.assert_allclose(found.x, x, rtol=1e-10 if exact else 1e-12, err_msg=f"step {k}")
            np.testing.assert_allclose(found.W, W, rtol=1e-9, atol=1e-12)
    assert min(lengths) < 1 if outer > 1 else max(lengths) > 1


@pytest.mark.parametrize("start", [X0, np.array([2.5, 2.0])], ids=["near", "far"])
def test_newton(start, monkeypatch):
    """Newton's steps on the exact hypergradient, with a Hessian by differences of it; shorter where the objective would
    rise, and to the minimum from far away too."""
    monkeypatch.setattr(newton, "_closeness", lambda at, plan: 0.0)  # the lower level to rounding in every step
    solver, whole = cb.Newton(), 0
    problem = solver.prepare(eqx.tree_at(lambda r: r.problem.x0, reduced(False), jnp.asarray(start)))
    at = solver.ready(problem.ordinary())
    state = solver.init(at, KEY, 100)

    def reduced_at(x, W):
        W = minimiser(x, W)
        return W, value_at(x, W), hypergradient(x, W, adjoint(x, W))

    x, (W, value, g) = start, reduced_at(start, W0)
    for k in range(20):
        state = solver.step(at, state)
        np.testing.assert_allclose(state.x, x, rtol=1e-6, atol=1e-9, err_msg=f"step {k}")
        np.testing.assert_allclose(problem.restore(jnp.asarray(state.W)), W, rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(state.current.gradient, g, rtol=1e-4, atol=1e-8)
        if solver.terminate(at, state) != cb.Result.RUNNING.code:
            break
        little = 1e-5 * np.eye(2)
        H = np.stack([(reduced_at(x + p, W)[2] - reduced_at(x - p, W)[2]) / 2e-5 for p in little])
        step = np.linalg.solve((H + H.T) / 2, -g)
        planned = np.allclose(state.plan.step, step, rtol=1e-4)
        if planned and reduced_at(x + step, W)[1] <= value + 1e-4 * g @ step:
            np.testing.assert_allclose(state.plan.promised, -g @ step / 2, rtol=1e-2, atol=1e-12)
            x, whole = x + step, whole + 1
        else:  # a search, or secants: what they have led to
            x = np.asarray(solver.step(at, state).x)
        W, value, g = reduced_at(x, W)
    assert whole >= 3
    assert state.clock.outcome(cb.Result.RUNNING.code) == cb.Result.CONVERGED.code
    assert np.linalg.norm(g) < 1e-8
