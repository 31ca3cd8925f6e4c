"""Bad input: every error names the argument, says what was wrong, and what to do."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import cobilevel as cb
from problems import LINE, Aim, Line, row, scalar

XI = np.linspace(0, 1, 40)


def problem(**change):
    usual = {"upper": Aim(row(0.0, 1.0), ridge=1.0), "lower": Line(), "x0": 0.5, "y0": 0.0, "domain": LINE}
    return cb.Problem(**(usual | change))


def samples(**change):
    return cb.Samples(**({"xi": XI, "eta": np.zeros(40)} | change))


def solve(basis=None, problem_change=None, data=None, **options):
    data = samples() if data is None else data
    return cb.solve(problem(**(problem_change or {})), data, basis=basis or cb.Chebyshev(3), **options)


def lifted(problem, basis, data):
    reduced = cb.reduce(problem, basis, data)
    return reduced.lift(reduced.x0, reduced.W0)


WIDE = lambda x, y, xi, eta: jnp.sum((y - x * xi) ** 2)
NAN = np.where(np.arange(40) == 7, np.nan, 0.0)
CASES = {
    # what the user does: (the call, the error, words it must contain)
    "lengths differ": (lambda: samples(eta=np.zeros(39)), ValueError, ["eta", "39", "40"]),
    "lengths differ in a pytree": (lambda: samples(eta={"a": np.zeros(40), "b": np.zeros(3)}), ValueError, ["eta['b']", "3"]),
    "weights of another length": (lambda: samples(weights=np.ones(3)), ValueError, ["weights", "(40,)"]),
    "negative weights": (lambda: samples(weights=-np.ones(40)), ValueError, ["weights", "nonnegative"]),
    "a list of numbers as noise": (lambda: samples(eta=[0.0] * 40), ValueError, ["eta", "numpy.asarray"]),
    "text as noise": (lambda: samples(eta=np.array(["a"] * 40)), TypeError, ["eta", "numbers"]),
    "NaN in noise": (lambda: samples(eta=NAN), ValueError, ["eta", "NaN", "row 7", "Drop"]),
    "infinite context": (lambda: samples(xi=np.where(XI > 0.9, np.inf, XI)), ValueError, ["xi", "infinity"]),
    "no samples": (lambda: samples(xi=np.zeros(0), eta=np.zeros(0)), ValueError, ["xi", "no rows"]),
    "contexts outside": (lambda: solve(data=samples(xi=XI + 0.5)), ValueError, ["samples.xi", "outside", "Widen"]),
    "contexts of another shape": (lambda: solve(data=samples(xi=XI[:, None])), ValueError, ["samples.xi", "(40, 1)", "(n,)"]),
    "complex contexts": (lambda: samples(xi=XI + 1j), TypeError, ["Samples: xi", "complex", "real numbers"]),
    "masked contexts": (lambda: samples(xi=np.ma.array(XI, mask=XI[3] < XI)), ValueError, ["Samples: xi", "masked at", "Drop"]),
    "value not in a finite domain": (
        lambda: solve(problem_change={"domain": cb.Finite([0.0, 1.0])}), ValueError, ["samples.xi", "Finite", "Add"]
    ),
    "not samples at all": (lambda: solve(data=XI), TypeError, ["samples", "cb.Samples"]),
    "one level of the wrong kind": (lambda: cb.Levels(upper=XI, lower=samples()), TypeError, ["upper", "Samples"]),
    "a stream that returns arrays": (lambda: cb.Stream(lambda key, size: jnp.zeros(size)), TypeError, ["draw", "Samples"]),
    "integer x0": (lambda: problem(x0=1), TypeError, ["x0", "float", "1.0"]),
    "integer leaf of y0": (lambda: problem(y0={"a": np.zeros(2, int)}), TypeError, ["y0['a']", "float"]),
    "NaN in x0": (lambda: problem(x0=np.array([np.nan])), ValueError, ["x0", "NaN"]),
    "x0 outside its bounds": (lambda: problem(x_bounds=(1.0, 2.0)), ValueError, ["x0", "x_bounds", "Move"]),
    "bounds swapped": (lambda: problem(x_bounds=(2.0, 1.0)), ValueError, ["x_bounds", "swapped"]),
    "bounds of another shape": (lambda: problem(x_bounds=(np.zeros(3), None)), ValueError, ["x_bounds", "(3,)"]),
    "bounds not a pair": (lambda: problem(x_bounds=0.0), TypeError, ["x_bounds", "pair"]),
    "upper returns a vector": (
        lambda: solve(problem_change={"upper": lambda x, y, xi, eta: jnp.ones(3) * y}), ValueError, ["upper", "scalar", "(3,)", "average"]
    ),
    "lower returns a vector": (
        lambda: solve(problem_change={"lower": lambda x, y, xi, eta: jnp.ones(3) * y}), ValueError, ["lower", "scalar", "(3,)"]
    ),
    "lower returns an integer": (lambda: solve(problem_change={"lower": lambda x, y, xi, eta: 1}), (TypeError, ValueError), ["lower"]),
    "objective that fails": (
        lambda: solve(problem_change={"upper": lambda x, y, xi, eta: y @ jnp.ones(5)}), ValueError, ["upper", "one sample"]
    ),
    "objective of three arguments": (lambda: problem(upper=lambda x, y, xi: 0.0), TypeError, ["upper", "4 arguments"]),
    "not a function": (lambda: problem(lower=3.0), TypeError, ["lower", "function"]),
    "a domain that is none": (lambda: problem(domain=(0, 1)), TypeError, ["domain", "Interval"]),
    "interval the wrong way round": (lambda: cb.Interval(1.0, 0.0), ValueError, ["lo < hi"]),
    "unbounded interval": (lambda: cb.Interval(0.0, np.inf), ValueError, ["Interval", "finite"]),
    "box with a thin side": (lambda: cb.Box([0.0, 1.0], [1.0, 1.0]), ValueError, ["Box", "dimension 1"]),
    "repeated finite values": (lambda: cb.Finite([0.0, 1.0, 1.0]), ValueError, ["Finite", "distinct"]),
    "n below 1": (lambda: cb.Chebyshev(0), ValueError, ["Chebyshev", "n", "at least 1"]),
    "n not whole": (lambda: cb.Fourier(2.5), ValueError, ["Fourier", "whole"]),
    "partition over a sparse set": (lambda: cb.Partition(3, index=cb.TotalDegree()), ValueError, ["Partition", "Tensor"]),
    "an index set that is none": (lambda: cb.Chebyshev(3, index="total"), TypeError, ["index", "TotalDegree"]),
    "features of another length": (lambda: solve(cb.Features(lambda xi: jnp.stack([xi, xi]), 3)), ValueError, ["Features", "(3,)", "(2,)"]),
    "features with NaN": (lambda: solve(cb.Features(lambda xi: jnp.log(xi)[None], 1)), ValueError, ["NaN or infinity"]),
    "categories on an interval": (lambda: solve(cb.Categorical()), TypeError, ["Categorical", "Finite"]),
    "more functions than contexts": (lambda: solve(cb.Chebyshev(41)), ValueError, ["41 functions", "40 distinct", "smaller n"]),
    "a basis that is none": (lambda: solve("chebyshev"), TypeError, ["basis", "cb.Chebyshev(5)"]),
    "a solver class": (lambda: solve(solver=cb.Newton), TypeError, ["solver", "cb.Newton()"]),
    "batch for Newton": (lambda: solve(batch=8), TypeError, ["Newton", "batch"]),
    "no steps": (lambda: solve(steps=0), ValueError, ["steps", "at least 1"]),
    "batch of none": (lambda: solve(solver=cb.StocBiO(0.1, 0.1), batch=0), ValueError, ["batch", "at least 1"]),
    "lower_noise=False that is not so": (lambda: solve(problem_change={"lower_noise": False}, data=samples(eta=XI)), ValueError, ["lower_noise"]),
    "lower_noise=False hidden at y0": (
        lambda: solve(
            problem_change={"lower_noise": False, "lower": lambda x, y, xi, eta: (1 + eta) * y**2 + y**2}, data=samples(eta=XI)
        ),
        ValueError,
        ["lower_noise"],
    ),
    "steps beyond counting": (lambda: solve(steps=2**40), ValueError, ["steps", "2147483647"]),
    "half a batch": (lambda: cb.StocBiO(0.1, 0.1, batch=2.5), ValueError, ["batch", "whole"]),
    "no memory": (lambda: cb.Newton(memory=0), ValueError, ["memory", "at least 1"]),
    "tolerance in words": (lambda: cb.Newton(tolerance="a"), TypeError, ["tolerance", "positive number"]),
    "half a degree": (lambda: cb.BSpline(5, degree=2.5), ValueError, ["degree", "whole"]),
    "half a node": (lambda: cb.Product(XI, np.zeros(4), nodes=2.5), ValueError, ["nodes", "whole"]),
    "an empty y0": (lambda: problem(y0=np.zeros(0)), ValueError, ["y0", "empty"]),
    "half precision": (lambda: problem(x0=np.float16(1)), TypeError, ["x0", "float16", "float32"]),
    "a mean of another length": (lambda: cb.TruncatedNormal(LINE, np.zeros(3), 1.0), ValueError, ["mean", "dimensions"]),
    "a stream that leaves the domain": (
        lambda: solve(data=cb.Stream(lambda k, n: cb.Samples(1.02 * jax.random.uniform(k, (n,)), jnp.zeros(n))), solver=cb.StocBiO(0.1, 0.1)),
        ValueError,
        ["draw", "outside", "Widen"],
    ),
    "a Hessian that does not fit": (
        lambda: solve(cb.Chebyshev(2), {"y0": np.zeros(20_000), "upper": WIDE, "lower": WIDE}, solver=cb.STABLE()), ValueError, ["STABLE", "GiB", "SOBA"]
    ),
    "another that does not fit": (
        lambda: solve(cb.Chebyshev(2), {"y0": np.zeros(20_000), "upper": WIDE, "lower": WIDE}, solver=cb.RSVRB()), ValueError, ["RSVRB", "GiB"]
    ),
    "a table that does not fit": (
        lambda: solve(cb.Chebyshev(2), {"y0": np.zeros(10_000_000), "upper": WIDE, "lower": WIDE}, solver=cb.SABA()), ValueError, ["SABA", "table", "GiB"]
    ),
    "a table over a stream": (
        lambda: solve(data=cb.Stream(lambda k, n: cb.Samples(jax.random.uniform(k, (n,)), jnp.zeros(n))), solver=cb.SABA()), ValueError, ["SABA", "Stream", "draw"]
    ),
    "terms of none": (lambda: cb.MRBO(terms=0), ValueError, ["MRBO", "terms", "at least 1"]),
    "a negative step": (lambda: cb.SOBA(inner=-0.1), ValueError, ["SOBA: inner", "positive"]),
    "a step in words": (lambda: cb.SOBA(outer="a"), TypeError, ["step size", "number"]),
    "several steps": (lambda: cb.SOBA(linear=[0.1, 0.2]), ValueError, ["SOBA: linear", "one number"]),
    "an Optax transformation not called": (lambda: cb.SOBA(outer=optax.adam), TypeError, ["SOBA: outer", "schedule", "one number"]),
    "an Optax transformation inside": (lambda: cb.SOBA(inner=optax.adam(0.1)), TypeError, ["step size", "number"]),
    "a schedule of vectors": (lambda: cb.SOBA(outer=lambda k: np.ones(3)), TypeError, ["SOBA: outer", "one number", "(3,)"]),
    "a schedule that branches": (lambda: cb.SOBA(outer=lambda k: 0.1 if k < 9 else 0.01), TypeError, ["SOBA: outer", "traceable", "jnp.where"]),
    "an average of more than all": (lambda: cb.SOBA(average=1.5), ValueError, ["average", "between 0 and 1"]),
    "a negative tolerance": (lambda: cb.SOBA(tolerance=-1.0), ValueError, ["tolerance", "between 0"]),
    "shuffling in words": (lambda: cb.SOBA(shuffle="no"), TypeError, ["shuffle", "True or False"]),
    "a table with repeated rows": (lambda: cb.SABA(shuffle=False), ValueError, ["SABA", "shuffle"]),
    "a probability of two": (lambda: cb.SPABA(probability=2.0), ValueError, ["probability", "between 0 and 1"]),
    "a momentum of three": (lambda: cb.SUSTAIN(momentum=3.0), ValueError, ["momentum", "between 0 and 1"]),
    "growth without end": (lambda: cb.BSA(growth=40.0), ValueError, ["growth"]),
    "Newton on a stream": (
        lambda: solve(data=cb.Stream(lambda k, n: cb.Samples(jax.random.uniform(k, (n,)), jnp.zeros(n))), solver=cb.Newton()),
        ValueError,
        ["Newton", "Stream", "draw"],
    ),
    "evaluate without a conditional law": (
        lambda: cb.evaluate(problem(), lifted(problem(), cb.Chebyshev(2), samples()), samples()), ValueError, ["conditional"]
    ),
    "policy of the wrong shape": (
        lambda: lifted(
            problem(domain=cb.Box([0.0, 0.0], [1.0, 1.0]), upper=lambda x, y, xi, eta: y**2 + x**2, lower=lambda x, y, xi, eta: (y - xi[0]) ** 2),
            cb.Chebyshev(2), cb.Samples(np.random.default_rng(0).uniform(size=(40, 2)), np.zeros(40)),
        ).policy(jnp.array(0.5)),
        ValueError,
        ["contexts", "(2,)"],
    ),
    "a circle the wrong way round": (lambda: cb.Periodic(24.0, 0.0), ValueError, ["Periodic", "lo < hi"]),
    "a negative scale": (lambda: cb.Unbounded(0.0, -1.0), ValueError, ["Unbounded", "scale must be positive"]),
    "parts without names": (lambda: cb.Mixed([LINE]), TypeError, ["Mixed", "by name"]),
    "a vector as a part": (lambda: cb.Mixed(place=cb.Box([0.0, 0.0], [1.0, 1.0])), TypeError, ["place", "each part is a scalar"]),
    "a mixed part": (lambda: cb.Mixed(inner=cb.Mixed(a=LINE)), TypeError, ["inner", "each part is a scalar"]),
    "a string as a list of values": (lambda: cb.Finite("abc"), TypeError, ["Finite takes a list of values"]),
    "a number in a mixture": (
        lambda: cb.Mixture((cb.Uniform(LINE), 0.5), [0.5, 0.5]), TypeError, ["Mixture takes a list of distributions", "cb.Uniform"]
    ),
    "a mixture on two domains": (
        lambda: cb.Mixture((cb.Uniform(LINE), cb.Uniform(cb.Interval(0.0, 2.0))), [0.5, 0.5]), ValueError, ["Mixture", "one domain", "larger"]
    ),
    "a rule of no nodes": (lambda: cb.Uniform(LINE).quadrature(0), ValueError, ["quadrature: n must be a whole number of at least 1"]),
}  # fmt: skip

# Values that an argument does not take, and the words, one of which the error must have.
NOT_POSITIVE = ["no", np.nan, -1.0, True, np.inf, [1.0], 1j]
VALUES = {
    "Newton: tolerance": (lambda v: cb.Newton(tolerance=v), NOT_POSITIVE, ["Newton", "positive"]),
    "Orthonormal: tolerance": (lambda v: cb.Orthonormal(cb.Chebyshev(3), v), NOT_POSITIVE, ["Orthonormal", "positive"]),
    "SOBA: inner": (lambda v: cb.SOBA(inner=v), NOT_POSITIVE, ["SOBA", "a step size", "positive"]),
    "SOBA: outer": (lambda v: cb.SOBA(outer=v), NOT_POSITIVE, ["SOBA", "a step size", "positive"]),
    "PolynomialDecay: value": (lambda v: cb.PolynomialDecay(v, 0.5), NOT_POSITIVE, ["PolynomialDecay", "a step size", "positive"]),
    "PolynomialDecay: offset": (lambda v: cb.PolynomialDecay(0.1, 0.5, v), NOT_POSITIVE, ["PolynomialDecay", "a step size", "positive"]),
    "Cosine: steps": (lambda v: cb.Cosine(0.1, v), NOT_POSITIVE, ["Cosine", "a step size", "positive"]),
    "Neural: rate": (lambda v: cb.Neural(4, rate=v), NOT_POSITIVE, ["Neural", "positive"]),
    "smoothing": (lambda v: scalar(smoothing=v), NOT_POSITIVE, ["smoothing"]),
    "lower_noise": (lambda v: scalar(lower_noise=v), ["no", 0, 1, np.nan, [True]], ["lower_noise"]),
    "Orthonormal: share": (lambda v: cb.Orthonormal(cb.Chebyshev(3), v), [0, 1.0, 3], ["Orthonormal: tolerance"]),
    "StocBiO: kind": (lambda v: cb.StocBiO(kind=v), ["mean", None, 3, ["sum"]], ["StocBiO: kind"]),
    "SOBA: batch": (lambda v: cb.SOBA(batch=v), [None, 0, 2.5, True, "all"], ["SOBA: batch"]),
    "StocBiO: inner_steps": (lambda v: cb.StocBiO(inner_steps=v), [None, 0, 2.5], ["StocBiO: inner_steps"]),
    "SOBA: average": (lambda v: cb.SOBA(average=v), [np.nan, -0.1, 1.1, [0.5]], ["SOBA: average"]),
    "SOBA: tolerance": (lambda v: cb.SOBA(tolerance=v), [np.nan, -0.1, np.inf, [0.5]], ["SOBA: tolerance"]),
    "PolynomialDecay: power": (lambda v: cb.PolynomialDecay(0.1, v), [np.nan, np.inf, [0.5], None], ["PolynomialDecay: power"]),
    "Simplex: total": (lambda v: cb.Simplex(v), [np.nan, 0, -1.0, "a", [1.0]], ["Simplex: total"]),
    "TruncatedNormal: std": (lambda v: cb.TruncatedNormal(LINE, 0.5, v), [np.nan, 0.0, -1.0, "a", True], ["TruncatedNormal: std"]),
}  # fmt: skip
CASES |= {
    f"{name} = {value!r}": (lambda make=make, value=value: make(value), (TypeError, ValueError), [tuple(words)])
    for name, (make, values, words) in VALUES.items()
    for value in values
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_instructs(name):
    call, kind, words = CASES[name]
    with pytest.raises(kind) as caught:
        call()
    for word in words:  # of a tuple, one
        assert any(part in str(caught.value) for part in ([word] if isinstance(word, str) else word)), str(caught.value)


def test_what_is_right_is_taken():
    for make, values, _ in VALUES.values():
        if values is NOT_POSITIVE:
            make(0.5)
    assert scalar(lower_noise=np.bool_(True)).lower_noise is True
    assert scalar(lower_noise=None).lower_noise is None
    assert cb.StocBiO(terms=None).terms is None
    assert float(cb.PolynomialDecay(0.1, -1 / 7).power) < 0
    assert float(cb.SOBA(tolerance=0).tolerance) == 0


def test_near_the_number_of_contexts_there_is_a_warning():
    with pytest.warns(UserWarning, match="overfitting"):
        cb.reduce(problem(), cb.Chebyshev(30), samples())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cb.reduce(problem(), cb.Chebyshev(15), samples())


def test_unknown_keywords_are_pythons_own_errors():
    for keyword in ("step", "shuffle"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{keyword}'"):
            solve(**{keyword: 3})


def test_tests_run_in_double_precision_with_strict_promotion():
    assert jax.config.jax_numpy_dtype_promotion == "strict"
    assert jax.config.jax_enable_x64
