"""Whatever is handed to the public surface either works or is refused in a sentence of the library's own.

An error is raw where it comes from elsewhere: its innermost frame is not in the package, its type is not one that the
package raises, or its message is no sentence. ``HOSTILE_EXAMPLES=2000`` looks at as many inputs.
"""

import os
import tempfile
import traceback
import warnings
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from hypothesis.extra import numpy as arrays

import cobilevel as cb

EXAMPLES = int(os.environ.get("HOSTILE_EXAMPLES", "200"))
OWN = (TypeError, ValueError, RuntimeError, OSError)
ROOT = str(Path(cb.__file__).parent)
LINE, SQUARE = cb.Interval(0.0, 1.0), cb.Box([0.0, 0.0], [1.0, 1.0])
MIXED = cb.Mixed(a=LINE, day=cb.Finite(["mon", "tue"]))
XI = np.linspace(0, 1, 40)
SAMPLES = cb.Samples(XI, 0.1 * np.cos(9 * XI))
DAYS = cb.Samples({"a": XI, "day": np.array(["mon", "tue"] * 20)}, XI)
BASIS = cb.Chebyshev(3)


def aim(x, y, xi, eta):
    return (y - 1) ** 2 + 0.1 * x**2


def fit(x, y, xi, eta):
    return (y - x * xi - eta) ** 2


def fit_days(x, y, xi, eta):
    return (y - x * xi["a"] - xi["day"] - eta) ** 2


PROBLEM = cb.Problem(aim, fit, 0.5, 0.0, LINE)
ON_DAYS = cb.Problem(aim, fit_days, 0.5, 0.0, MIXED)


def lifted(problem, samples, basis):
    reduced = cb.reduce(problem, basis, samples)
    return reduced.lift(reduced.x0, reduced.W0)


class Made:
    """Solutions without a solve, made when first asked for."""

    def __getattr__(self, name):
        made = {
            "line": lambda: lifted(PROBLEM, SAMPLES, BASIS),
            "days": lambda: lifted(ON_DAYS, DAYS, cb.Components(a=BASIS, day=cb.Categorical())),
        }
        setattr(self, name, made[name]())
        return getattr(self, name)


MADE = Made()
# Values that are seldom what a function expects; made anew by name, so that failures can be read.
ODD = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "1": lambda: 1,
    "3": lambda: 3,
    "-1": lambda: -1,
    "2**70": lambda: 2**70,
    "-2**70": lambda: -(2**70),
    "0.5": lambda: 0.5,
    "nan": lambda: np.nan,
    "inf": lambda: np.inf,
    "-inf": lambda: -np.inf,
    "1e308": lambda: 1e308,
    "-1e308": lambda: -1e308,
    "1e-320": lambda: 1e-320,
    "1j": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "abc",
    "bytes": lambda: b"abc",
    "()": lambda: (),
    "[]": list,
    "{}": dict,
    "set": lambda: {1, 2},
    "range": lambda: range(3),
    "generator": lambda: (k for k in range(3)),
    "object": object,
    "class": lambda: int,
    "lambda": lambda: lambda: 0,
    "lambda of one": lambda: lambda a: a,
    "lambda of four": lambda: lambda x, y, xi, eta: y**2,
    "Decimal": lambda: Decimal("1.5"),
    "Fraction": lambda: Fraction(1, 3),
    "[1, 2]": lambda: [1, 2],
    "[1.0, nan]": lambda: [1.0, np.nan],
    "ragged": lambda: [[1.0], [2.0, 3.0]],
    "texts": lambda: ["a", "b"],
    "text and number": lambda: ["a", 1],
    "nested": lambda: {"a": [1.0, {"b": (2.0, None)}]},
    "dict": lambda: {"a": 0.5, "day": "mon"},
    "dict of columns": lambda: {"a": [0.1, 0.2], "day": ["mon", "tue"]},
    "dict of lengths": lambda: {"a": [0.1, 0.2, 0.3], "day": ["mon", "tue"]},
    "dict of one": lambda: {"a": 0.5},
    "dict of unknown": lambda: {"a": 0.5, "day": "sun"},
    "0-d": lambda: np.zeros(()),
    "no rows": lambda: np.zeros(0),
    "no columns": lambda: np.zeros((3, 0)),
    "(2, 2, 2)": lambda: np.zeros((2, 2, 2)),
    "40": lambda: np.linspace(0, 1, 40),
    "39": lambda: np.linspace(0, 1, 39),
    "(40, 2)": lambda: np.zeros((40, 2)),
    "integers": lambda: np.arange(40),
    "booleans": lambda: np.ones(40, bool),
    "complex": lambda: np.ones(40) * 1j,
    "objects": lambda: np.array([None, 1.0, "a"], object),
    "float16": lambda: np.ones(40, np.float16),
    "NaN": lambda: np.full(40, np.nan),
    "huge": lambda: np.full(40, 1e308),
    "texts of NumPy": lambda: np.array(["a"] * 40),
    "times": lambda: np.arange(40).astype("datetime64[s]"),
    "records": lambda: np.zeros(40, [("a", float), ("b", int)]),
    "JAX": lambda: jnp.linspace(0, 1, 40),
    "32 bits": lambda: jnp.ones(40, jnp.float32),
    "key": lambda: jax.random.key(0),
    "keys": lambda: jax.random.split(jax.random.key(0), 40),
    "masked": lambda: np.ma.masked_array([1.0, 2.0], [True, False]),
    "matrix of none": lambda: [[]],
    "Interval": lambda: LINE,
    "Box": lambda: SQUARE,
    "Finite": lambda: cb.Finite([0.0, 1.0]),
    "Samples": lambda: SAMPLES,
    "Chebyshev": lambda: BASIS,
    "many functions": lambda: cb.Chebyshev(10**6),
    "Newton": lambda: cb.Newton(),
    "Tensor": lambda: cb.Tensor(),
    "Uniform": lambda: cb.Uniform(LINE),
    "Bounds": lambda: cb.Bounds(0.0, 1.0),
    "Problem": lambda: PROBLEM,
    "Path": lambda: Path("no such file"),
    "folder": lambda: Path(tempfile.gettempdir()),
}


def stated(**change):
    usual = {"upper": aim, "lower": fit, "x0": 0.5, "y0": 0.0, "domain": LINE}
    return cb.Problem(**(usual | change))


def solved(**change):
    usual = {"problem": PROBLEM, "samples": SAMPLES, "basis": BASIS, "progress": False}
    return cb.solve(**(usual | change))


# What is called, with up to three hostile values.
CALLS = {
    "Interval": cb.Interval,
    "Box": cb.Box,
    "Periodic": cb.Periodic,
    "Unbounded": cb.Unbounded,
    "Finite": lambda a: cb.Finite(a),
    "Unbounded.fitted": lambda a: cb.Unbounded.fitted(a),
    "Mixed": lambda a: cb.Mixed(a),
    "Mixed by name": lambda a: cb.Mixed(a=a),
    "Samples": cb.Samples,
    "Samples xi": lambda a: cb.Samples(a),
    "Samples eta": lambda a: cb.Samples(XI, a),
    "Samples weights": lambda a: cb.Samples(XI, XI, a),
    "Product": lambda a, b: cb.Product(a, b),
    "Product eta": lambda a: cb.Product(XI, a),
    "Product nodes": lambda a: cb.Product(cb.Uniform(LINE), XI, nodes=a),
    "Levels": lambda a, b: cb.Levels(a, b),
    "Levels lower": lambda a: cb.Levels(SAMPLES, a),
    "Stream": lambda a: cb.Stream(a),
    "Stream of": lambda a: cb.Stream(lambda key, size: a),
    "from_frame": lambda a, b: cb.Samples.from_frame(a, b),
    "Uniform": lambda a: cb.Uniform(a),
    "TruncatedNormal": lambda a, b: cb.TruncatedNormal(LINE, a, b),
    "TruncatedNormal on": lambda a: cb.TruncatedNormal(a, 0.5, 0.1),
    "Mixture": lambda a, b: cb.Mixture(a, b),
    "quadrature": lambda a: cb.Uniform(LINE).quadrature(a),
    "domain_of": lambda a, b: cb.domain_of(a, b),
    "upper": lambda a: stated(upper=a),
    "lower": lambda a: stated(lower=a),
    "x0": lambda a: stated(x0=a),
    "y0": lambda a: stated(y0=a),
    "domain": lambda a: stated(domain=a),
    "x_bounds": lambda a: stated(x_bounds=a),
    "lo, hi": lambda a, b: stated(x_bounds=(a, b)),
    "conditional": lambda a: stated(conditional=a),
    "lower_noise": lambda a: stated(lower_noise=a),
    "constraints": lambda a: stated(constraints=a),
    "a constraint": lambda a: stated(constraints=[a]),
    "smoothing": lambda a: stated(smoothing=a),
    "Bounds": lambda a, b: stated(constraints=[cb.Bounds(a, b)]),
    "Equalities": lambda a, b: stated(constraints=[cb.Equalities(a, b)]),
    "Inequalities": lambda a: stated(constraints=[cb.Inequalities(a)]),
    "Chebyshev": lambda a: cb.Chebyshev(a),
    "index": lambda a: cb.Legendre(3, index=a),
    "Fourier": lambda a, b: cb.Fourier(a, period=b),
    "Fourier period": lambda a: cb.Fourier(3, period=a),
    "BSpline": lambda a, b: cb.BSpline(a, degree=b),
    "Partition": lambda a: cb.Partition(a),
    "Features": lambda a, b: cb.Features(a, b),
    "Orthonormal": lambda a: cb.Orthonormal(a),
    "Orthonormal tolerance": lambda a: cb.Orthonormal(BASIS, a),
    "Union": lambda a: cb.Union(a),
    "Components": lambda a: cb.Components(a),
    "Components by name": lambda a: cb.Components(a=a),
    "coupling": lambda a: cb.Components(a=BASIS, coupling=a),
    "Rotated": lambda a, b: cb.Rotated(a, b),
    "Snapshot": lambda a, b: cb.Snapshot(a, b),
    "Neural": lambda a, b: cb.Neural(a, width=b),
    "KernelFeatures": lambda a, b: cb.KernelFeatures(a, b),
    "scale": lambda a: cb.KernelFeatures(5, scale=a),
    "Listed": lambda a: cb.Listed(a),
    "Interactions": lambda a: cb.Interactions(a),
    "Newton": lambda a, b: cb.Newton(a, b),
    "SOBA": lambda a, b: cb.SOBA(a, batch=b),
    "StocBiO": lambda a, b: cb.StocBiO(a, b),
    "average": lambda a: cb.SOBA(average=a),
    "PolynomialDecay": cb.PolynomialDecay,
    "Cosine": cb.Cosine,
    "solve problem": lambda a: solved(problem=a),
    "solve samples": lambda a: solved(samples=a),
    "solve basis": lambda a: solved(basis="?" if a is None else a),
    "solve solver": lambda a: solved(solver=a),
    "solve steps": lambda a: solved(steps=a),
    "solve key": lambda a: solved(key=a),
    "solve resume": lambda a: solved(resume=a),
    "solve tolerance": lambda a: solved(tolerance=0 if a is None else a),
    "solve batch": lambda a: solved(batch=a),
    "solve precision": lambda a: solved(precision=a),
    "solve restarts": lambda a: solved(restarts=0 if isinstance(a, int | float) else a),
    "reduce": lambda a: cb.reduce(PROBLEM, a, SAMPLES),
    "reduce samples": lambda a: cb.reduce(PROBLEM, BASIS, a),
    "lift": lambda a: cb.reduce(PROBLEM, BASIS, SAMPLES).lift(a, a),
    "draw": lambda a, b: cb.reduce(PROBLEM, BASIS, SAMPLES).draw(a, b),
    "certify": lambda a: cb.certify(PROBLEM, a, SAMPLES),
    "certify mode": lambda a: cb.certify(PROBLEM, MADE.line, SAMPLES, mode="?" if a is None else a),
    "certify samples": lambda a: cb.certify(PROBLEM, MADE.line, a),
    "certify key": lambda a: cb.certify(PROBLEM, None, SAMPLES, key=a),
    "evaluate": lambda a: cb.evaluate(PROBLEM, a, SAMPLES),
    "evaluate problem": lambda a: cb.evaluate(a, MADE.line, SAMPLES),
    "evaluate precision": lambda a: cb.evaluate(PROBLEM, None, SAMPLES, precision=a),
    "diagnose": lambda a: cb.diagnose(PROBLEM, "?" if isinstance(a, cb.Chebyshev) else a, SAMPLES),
    "diagnose problem": lambda a: cb.diagnose(a, "?", SAMPLES),
    "bootstrap": lambda a: cb.bootstrap(PROBLEM, a, SAMPLES),
    "policy": lambda a: MADE.line.policy(a),
    "policy of days": lambda a: MADE.days.policy(a),
    "table": lambda a: MADE.line.table(a),
    "table of days": lambda a: MADE.days.table(a),
    "policy_standard_error": lambda a: MADE.line.policy_standard_error(a),
    "plot over": lambda a: MADE.days.plot(over=a),
    "plot at": lambda a: MADE.days.plot(at=a),
    "plot samples": lambda a: MADE.line.plot(samples=a),
    "features": lambda a: MADE.line.basis(a),
    "load": lambda a: cb.load(a, PROBLEM),
    "save": lambda a: MADE.line.save(a) if not isinstance(a, str | Path | bytes) else None,
}
PLACES = {name: call.__code__.co_argcount if hasattr(call, "__code__") else 2 for name, call in CALLS.items()}


class Value:
    """A hostile value that says what it is."""

    def __init__(self, name, make):
        self.name, self.make = name, make

    def __repr__(self):
        return self.name


named = st.sampled_from([Value(name, make) for name, make in ODD.items()])
dtypes = st.sampled_from([np.float64, np.float32, np.int64, np.uint8, np.bool_, np.complex128, object, "U2"])
shaped = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
generated = dtypes.flatmap(lambda dtype: arrays.arrays(dtype, shaped)).map(lambda a: Value(repr(a), lambda: a))
numbers = st.one_of(st.floats(), st.integers()).map(lambda a: Value(repr(a), lambda: a))
values = st.one_of(named, named, generated, numbers)


def rawness(error):
    """Why an error is raw, empty where it is not."""
    frame, words = traceback.extract_tb(error.__traceback__)[-1], str(error)
    if not frame.filename.startswith(ROOT):
        return f"raised in {frame.filename}:{frame.lineno}"
    if not isinstance(error, OWN):
        return f"a {type(error).__name__}"
    return "" if len(words.split()) >= 4 and words.rstrip().endswith((".", ")", "?")) else "no sentence"


def sound(out):
    """Whether what came back can be used: a solution is finite, or says that it did not converge."""
    if not isinstance(out, cb.Solution):
        return True
    return not out.converged or all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((out.x, out.W)))


def complaint(name, handed):
    """What is wrong with what a call does with such values; empty where nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = CALLS[name](*(value.make() for value in handed))
    except Exception as error:
        why = rawness(error)
        return f"{name}{handed}: {type(error).__name__}: {error}\n{why}" if why else ""
    return "" if sound(out) else f"{name}{handed}: not finite, and said to have converged"


@pytest.fixture(scope="module")
def as_users_have_it():
    yield
    MADE.__dict__.clear()


@given(call=st.sampled_from(list(CALLS)), handed=st.tuples(values, values, values))
@settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
def test_hostile_inputs_work_or_are_refused_in_a_sentence(as_users_have_it, call, handed):
    assert not complaint(call, handed[: PLACES[call]])
