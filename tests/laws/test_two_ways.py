"""Asked in two ways, one answer: every form of the same contexts gives the same policy, table, error and samples.

For every kind of domain, and for solutions that were solved, saved and loaded, pickled, found on partitions, or found
by a method that does not reduce. ``QUESTIONS`` in the environment says how many are asked.
"""

import os
import pickle
from collections import OrderedDict, namedtuple
from decimal import Decimal
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import cobilevel as cb
from cobilevel.ground.programs import empty_table
from cobilevel.problem import Contexts, enter

QUESTIONS = int(os.environ.get("QUESTIONS", "150"))
ROWS = 240
WORDS = ("3", "1", "2")

# -- domains: how contexts are drawn, column by column, and the functions that are solved with


def numbers(rng, lo, hi, size):
    """Half of them whole."""
    return np.where(rng.uniform(size=size) < 0.5, rng.uniform(lo, hi, size), np.floor(rng.uniform(lo, hi, size)))


DOMAINS = {
    "line": cb.Interval(0.0, 10.0),
    "hours": cb.Periodic(0.0, 24.0),
    "reals": cb.Unbounded(5.0, 3.0),
    "words": cb.Finite(["spring", "autumn", "winter"]),
    "digits": cb.Finite(list(WORDS)),
    "truths": cb.Finite(["True", "False"]),
    "whole": cb.Finite(np.array([1, 2, 200], np.uint8)),
    "floats": cb.Finite([0.5, 1.0, 4.0]),
    "plane": cb.Box([0.0, 0.0], [10.0, 24.0]),
    "named": cb.Mixed(w=cb.Interval(0.0, 10.0), h=cb.Periodic(0.0, 24.0), q=cb.Finite(list(WORDS))),
    "prices": cb.Mixed(p=cb.Finite([0.1, 0.2, 0.3]), t=cb.Interval(0.0, 10.0)),
    "ids": cb.Mixed({"z": cb.Interval(0.0, 10.0), "id": cb.Finite([2**24, 2**24 + 1, 2**24 + 3])}),
}


def column(domain, rng, size):
    if isinstance(domain, cb.Finite):
        return rng.choice(np.array(domain.labels or domain.values), size)
    lo, hi = (-3.0, 60.0) if isinstance(domain, cb.Periodic) else (0.0, 10.0)
    return numbers(rng, lo, hi, size)


def columns(kind, seed, size):
    domain, rng = DOMAINS[kind], np.random.default_rng(seed)
    if kind == "plane":
        return {"0": numbers(rng, 0, 10, size), "1": numbers(rng, 0, 24, size)}
    return {name: column(part, rng, size) for name, part in getattr(domain, "parts", {"xi": domain}).items()}


def first(xi):
    """A number that every kind of context has, and that computes."""
    xi = next(iter(xi.values())) if isinstance(xi, dict) else xi
    return jnp.ravel(jnp.asarray(xi))[0] / 10.0


def basis_of(kind):
    """One with functions of the context itself, which sees whether it is wrapped, and its dtype."""
    if kind in ("hours", "whole"):
        return cb.Features(lambda xi: jnp.stack([jnp.ones(()), jnp.asarray(xi * xi, float) / 100]), 2)
    if isinstance(DOMAINS[kind], cb.Finite):
        return cb.Categorical()
    return cb.Chebyshev(3, index=cb.TotalDegree()) if DOMAINS[kind].shape else cb.Chebyshev(3)


upper = lambda x, y, xi, eta: jnp.sum((y["b"] - 1) ** 2) + (y["a"] - x) ** 2 + x**2 / 10
lower = lambda x, y, xi, eta: (y["b"] - x * first(xi) - eta["sold"] + eta["stock"]) ** 2 + (y["a"] + eta["stock"]) ** 2


def problem(kind):
    y0 = OrderedDict([("b", 0.0), ("a", 0.0)])  # in an order that is not the alphabet's
    return cb.Problem(upper, lower, 0.3, y0, DOMAINS[kind])


def noise(kind, seed=0):
    rng = np.random.default_rng(seed + 1)
    return {"sold": rng.integers(0, 4, ROWS).astype(np.uint8), "stock": rng.integers(0, 4, ROWS).astype(np.uint8)}


# -- forms: each makes of columns what a user may pass; None where it does not apply

Row = namedtuple("Row", ["more", "q", "h", "w"])


def single(table):
    return next(iter(table.values())) if len(table) == 1 else None


def turned(table):
    """The columns in another order."""
    return dict(reversed(table.items()))


def fitting(dtype):
    def form(table):
        values = single(table)
        if values is None or values.dtype.kind not in "iuf":
            return None
        cast = values.astype(dtype)
        return cast if np.array_equal(cast.astype(float), values.astype(float)) else None

    return form


def text(make):
    return lambda table: make(single(table)) if single(table) is not None and single(table).dtype.kind == "U" else None


def positions(dtype):
    """Of words that do not read as numbers."""
    seasons = ["spring", "autumn", "winter"]
    return lambda v: np.array([seasons.index(word) for word in v], dtype) if set(v) <= set(seasons) else None


def one_column(make):
    return lambda table: None if single(table) is None else make(single(table))


def several(make):
    return lambda table: None if len(table) == 1 else make(table)


def record(table):
    kinds = [(name, values.dtype) for name, values in turned(table).items()]
    found = np.empty(len(next(iter(table.values()))), kinds)
    for name, values in table.items():
        found[name] = values
    return found


FORMS = {
    "array": one_column(lambda v: v),
    "list": one_column(lambda v: v.tolist()),
    "tuple": one_column(lambda v: tuple(v.tolist())),
    "objects": one_column(lambda v: v.astype(object)),
    "jax": one_column(lambda v: jnp.asarray(v) if v.dtype.kind in "iuf" else None),
    **{kind: fitting(kind) for kind in ("f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")},
    "decimals": one_column(lambda v: [Decimal(repr(n)) for n in v.tolist()] if v.dtype.kind == "f" else None),
    "nothing masked": one_column(lambda v: np.ma.array(v, mask=False)),
    "strided": one_column(lambda v: np.repeat(v, 2)[::2]),
    "bytes": text(lambda v: v.astype("S")),
    "string dtype": text(lambda v: v.astype(np.dtypes.StringDType())),
    "category": text(lambda v: pd.Series(v, dtype="category")),
    "pandas string": text(lambda v: pd.Series(v, dtype="string")),
    "polars categorical": text(lambda v: pl.Series(v.tolist(), dtype=pl.Categorical)),
    **{f"positions, {kind}": text(positions(kind)) for kind in ("u1", "i2", "i8", "f4", "f8")},
    "numbers for words": text(
        lambda v: v.astype(int) if set(v) <= set(WORDS) else (v == "True") if set(v) <= {"True", "False"} else None
    ),
    "series": one_column(lambda v: pd.Series(v)),
    "labelled series": one_column(lambda v: pd.Series(v, index=[f"row {k}" for k in range(len(v))])),
    "polars series": one_column(lambda v: pl.Series(v.tolist())),
    "dict of one": one_column(lambda v: {"any": v}),
    "frame of one": one_column(lambda v: pd.DataFrame({"any": v})),
    "polars frame of one": one_column(lambda v: pl.DataFrame({"any": v.tolist()})),
    "dict": several(lambda t: t),
    "dict, turned": several(turned),
    "lists, turned": several(lambda t: {name: v.tolist() for name, v in turned(t).items()}),
    "pandas": several(lambda t: pd.DataFrame(turned(t))),
    "pandas objects": several(lambda t: pd.DataFrame(turned(t)).astype(object)),
    "polars": several(lambda t: pl.DataFrame({name: v.tolist() for name, v in turned(t).items()})),
    "records": several(record),
    "list of records": several(lambda t: list(record(t))),
    "list of dicts": several(lambda t: pd.DataFrame(turned(t)).to_dict("records")),
    "list of named tuples": several(lambda t: list(pd.DataFrame(turned(t)).itertuples(index=False))),
    "list of rows": several(lambda t: [row for _, row in pd.DataFrame(turned(t)).iterrows()]),
    "polars struct": several(lambda t: pl.DataFrame({k: v.tolist() for k, v in turned(t).items()}).to_struct("any")),
}
ASKED = {  # forms of what is asked for alone: other columns, and other precisions of the same values
    "dict with more": several(lambda t: {"more": "x", **turned(t)}),
    "coarse prices": several(lambda t: t | {"p": t["p"].astype(np.float32)} if "p" in t else None),
    "coarser prices": several(lambda t: t | {"p": t["p"].astype(np.float16)} if "p" in t else None),
    "pandas with more": several(lambda t: pd.DataFrame({"more": 0.5, **turned(t)})),
    "polars with more": several(lambda t: pl.DataFrame({"more": 0.5, **{k: v.tolist() for k, v in turned(t).items()}})),
}
ROW_FORMS = {
    "scalar": one_column(lambda v: v[0]),
    "plain": one_column(lambda v: v[0].item()),
    "zero-dimensional": one_column(lambda v: np.asarray(v[0])),
    "dict of one": one_column(lambda v: {"any": v[0].item()}),
    "dict": several(lambda t: {name: v[0].item() for name, v in turned(t).items()}),
    "pandas row": several(lambda t: pd.DataFrame({"more": 0.5, **turned(t)}).iloc[0]),
    "named tuple": several(lambda t: Row(0.5, *(t[name][0] for name in ("q", "h", "w"))) if "q" in t else None),
    "itertuples": several(lambda t: next(pd.DataFrame(turned(t)).itertuples())),
    "polars row": several(lambda t: pl.DataFrame({k: v.tolist() for k, v in turned(t).items()}).row(0, named=True)),
    "record": several(lambda t: record(t)[0]),
}
BOXES = {  # vectors have no names: their order is all there is
    "array": lambda v: v,
    "lists": lambda v: v.tolist(),
    "tuples": lambda v: tuple(map(tuple, v.tolist())),
    "fortran": np.asfortranarray,
    "objects": lambda v: v.astype(object),
    "jax": jnp.asarray,
    "frame to numpy": lambda v: pd.DataFrame(v, columns=["b", "a"]).to_numpy(),
}


def plain(kind, table):
    """The form that others are compared with: floats or words, dicts in the order of the domain."""
    if kind == "plane":
        return np.stack(list(table.values()), axis=1)
    values = {name: v.astype(float) if v.dtype.kind in "iuf" else v for name, v in table.items()}
    return values if len(values) > 1 else next(iter(values.values()))


def forms(kind, table, row=False, asked=True):
    if kind == "plane":
        made = {name: make(plain(kind, table)) for name, make in BOXES.items()}
        return {name: form[0] for name, form in made.items()} if row else made
    makers = ROW_FORMS if row else FORMS | (ASKED if asked else {})
    made = {name: make(table) for name, make in makers.items()}
    return {name: form for name, form in made.items() if form is not None}


# -- solutions


@cache
def solved(kind, how):
    table, eta, basis = columns(kind, 0, ROWS), noise(kind), basis_of(kind)
    if how == "direct":
        return cb.direct.LocalWeights().solve(problem(kind), cb.Samples(plain(kind, table), eta), steps=3)
    if how == "partitions":
        frame = pd.DataFrame(table | {"sold": eta["sold"], "stock": eta["stock"]})
        names = list(table) if DOMAINS[kind].shape else next(iter(table))
        data = cb.Samples.from_frame([frame.iloc[:100], frame.iloc[100:]], context=names, eta=["sold", "stock"])
        return cb.solve(problem(kind), data, basis=basis)
    if how == "pickled":
        whole = solved(kind, "solved")
        return pickle.loads(pickle.dumps(whole)) if not isinstance(basis, cb.Features) else whole
    return cb.solve(problem(kind), cb.Samples(plain(kind, table), eta), basis=basis)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    @cache
    def read(kind):
        path = tmp_path_factory.mktemp("kept") / "solution.npz"
        basis = basis_of(kind) if isinstance(basis_of(kind), cb.Features) else None
        return cb.load(solved(kind, "solved").save(path), problem(kind), basis)

    return read


def leaves(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def same(one, other):
    np.testing.assert_allclose(leaves(one), leaves(other), rtol=1e-9, atol=1e-12)


HOW = ("solved", "loaded", "pickled", "partitions", "direct")
ONCE = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=QUESTIONS, **ONCE)
@given(kind=st.sampled_from(sorted(DOMAINS)), how=st.sampled_from(HOW), seed=st.integers(0, 10**6), data=st.data())
def test_every_form_gives_the_same_policy_table_and_error(loaded, kind, how, seed, data):
    row = data.draw(st.booleans(), "a row")
    table = columns(kind, seed, 1 if row else data.draw(st.integers(1, 5), "rows"))
    made = forms(kind, table, row)
    name = data.draw(st.sampled_from(sorted(made)), "form")
    found = loaded(kind) if how == "loaded" else solved(kind, how)
    whole, form = plain(kind, table), made[name]
    wanted = found.policy(whole)
    assert np.all(np.isfinite(leaves(wanted)))
    same(found.policy(form), wanted)
    if how == "direct":
        return
    shown, expected = found.table(form), found.table(whole)
    assert np.all(np.asarray(shown["in_domain"]))
    same([np.asarray(shown[name], float) for name in "ab"], [wanted[name] for name in "ab"])
    same([np.asarray(expected[name], float) for name in "ab"], [wanted[name] for name in "ab"])
    if how == "solved" and kind != "reals":
        same(found.policy_standard_error(form), found.policy_standard_error(whole))


@pytest.mark.parametrize("kind", sorted(DOMAINS))
def test_every_form_of_the_data_gives_the_same_answer(kind):
    table, eta = columns(kind, 0, ROWS), noise(kind)
    if kind in ("line", "words"):  # counts as floats too: programs of their own, which other kinds need not repeat
        eta = {name: v.astype(float) for name, v in eta.items()}
    wanted = solved(kind, "solved")
    codes = np.asarray(enter(DOMAINS[kind], plain(kind, table), data=True).values, float)
    for name, form in forms(kind, table, asked=False).items():
        found = np.asarray(enter(DOMAINS[kind], cb.Samples(form).given, data=True).values, float)
        np.testing.assert_array_equal(found, codes, err_msg=name)
    last = forms(kind, table, asked=False)[sorted(forms(kind, table, asked=False))[-1]]
    again = cb.solve(problem(kind), cb.Samples(last, eta), basis=basis_of(kind))
    np.testing.assert_allclose(again.x, wanted.x, rtol=1e-9)
    for how in ("partitions", "pickled"):
        np.testing.assert_allclose(solved(kind, how).x, wanted.x, rtol=1e-9)


@pytest.mark.parametrize("kind", sorted(DOMAINS))
def test_contexts_that_have_entered_are_not_read_again(kind):
    inside = enter(DOMAINS[kind], plain(kind, columns(kind, 3, 7)))
    assert isinstance(inside, Contexts)
    assert enter(DOMAINS[kind], inside) is inside
    assert enter(DOMAINS[kind], cb.Samples(inside).given, data=True) is inside
    same(solved(kind, "solved").policy(inside), solved(kind, "solved").policy(plain(kind, columns(kind, 3, 7))))


UNKNOWN = {
    "line": 11.0, "hours": 24e15 + 3, "words": "summer", "digits": "7", "whole": 3, "floats": 0.75,
    "prices": {"p": 0.15, "t": 1.0},
    "plane": [11.0, 0.0], "named": {"w": 1.0, "h": 2.0, "q": "7"}, "ids": {"z": 1.0, "id": 2**24 + 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(UNKNOWN))
def test_what_the_domain_does_not_know_is_nan_where_asked_for_and_refused_as_data(kind):
    for how in ("solved", "direct"):
        assert np.all(np.isnan(leaves(solved(kind, how).policy(UNKNOWN[kind]))))
    shown = solved(kind, "solved").table([UNKNOWN[kind]] if kind == "plane" else UNKNOWN[kind])
    assert np.all(np.isnan(shown["b"]))
    assert not np.any(shown["in_domain"])
    if not isinstance(UNKNOWN[kind], dict | list):
        masked = np.ma.array(next(iter(columns(kind, 0, 2).values())), mask=[False, True])
        found = leaves(solved(kind, "solved").policy(masked))
        np.testing.assert_array_equal(np.isnan(found), [False, True, False, True])
    alone = UNKNOWN[kind]
    xi = {name: [value] for name, value in alone.items()} if isinstance(alone, dict) else [alone]
    with pytest.raises(ValueError, match=r"outside|known are|whose digits"):
        cb.solve(problem(kind), cb.Samples(xi, {"sold": np.ones(1), "stock": np.ones(1)}), basis=basis_of(kind))


@pytest.mark.parametrize("kind", ["plane", "pairs"])
def test_columns_by_name_are_refused_where_the_domain_has_no_names(kind):
    domain = DOMAINS["plane"] if kind == "plane" else cb.Finite(np.array([[0.0, 1.0], [2.0, 3.0]]))
    reduced = cb.reduce(
        cb.Problem(lambda x, y, xi, eta: y**2 + x**2, lambda x, y, xi, eta: (y - x) ** 2, 0.1, 0.0, domain),
        cb.Features(lambda xi: xi, 2),
        cb.Samples(np.array([[0.0, 1.0], [2.0, 3.0]])),
    )
    found = reduced.lift(reduced.x0, reduced.W0)
    for form in ({"b": [0.0], "a": [1.0]}, pd.DataFrame({"b": [0.0], "a": [1.0]}), namedtuple("P", "b a")(0.0, 1.0)):
        for ask in (found.policy, found.table, found.policy_standard_error):
            with pytest.raises(TypeError, match="have no names"):
                ask(form)


def test_what_is_handed_over_can_be_changed_afterwards():
    aligned = empty_table(64, 1, float)[:, 0]  # as JAX would take it without a copy
    aligned[:] = np.linspace(0, 1, 64)
    frame, kinds = pd.DataFrame({"t": aligned}), np.array([1.0, 2.0])
    samples, other, domain = cb.Samples(aligned, {"d": aligned}, aligned), cb.Samples(frame["t"]), cb.Finite(kinds)
    aligned[:], kinds[:] = 0.5, 9.0
    frame.loc[:, "t"] = 0.5
    for kept in (samples.xi, samples.eta["d"], samples.weights, other.xi):
        np.testing.assert_array_equal(kept, np.linspace(0, 1, 64))
    np.testing.assert_array_equal(domain.values, [1.0, 2.0])


def test_parts_and_periods_that_cannot_be_told_apart_are_refused():
    with pytest.raises(ValueError, match="more than one part is called '1'"):
        cb.Mixed({1: cb.Interval(0, 1), "1": cb.Interval(0, 1)})
    with pytest.raises(ValueError, match="period=7 is in units of the domain's length"):
        cb.solve(problem("hours"), cb.Samples(np.arange(ROWS) % 24.0, noise("hours")), basis=cb.Fourier(3, period=7))


def test_equalities_that_vary_see_wrapped_hours():
    limits = [cb.Equalities(np.ones((1, 2)), lambda x, xi: xi / 24)]
    stated = cb.Problem(
        lambda x, y, xi, eta: jnp.sum(y**2) + x**2, lambda x, y, xi, eta: jnp.sum((y - x) ** 2),
        0.1, jnp.zeros(2), cb.Periodic(0, 24), constraints=limits,
    )  # fmt: skip
    found = cb.solve(stated, cb.Samples(np.arange(96) % 24.0), basis=cb.Fourier(3))
    for ask in (25, 25.0, np.int8(25), {"hour": 25}):
        np.testing.assert_allclose(np.sum(found.policy(ask)), 1 / 24, rtol=1e-9)
        np.testing.assert_allclose(sum(found.table(ask)[f"y[{k}]"] for k in range(2)), 1 / 24, rtol=1e-9)


HOURS, IDS = cb.Periodic(0, 24), cb.Mixed(a=cb.Interval(0, 1), k=cb.Finite(list(range(2040, 2060))))
TIMES = cb.Mixed(a=cb.Interval(0, 1), t=cb.Interval(1.7e9, 1.7e9 + 1000))
HALF = np.array([0.5], np.float32)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize(
    ("domain", "given", "wanted"),
    [
        (HOURS, np.uint8([25, 49]), [1, 1]),
        (HOURS, [-1e-18, 48.0, -1.0], [0, 0, 23]),
        (HOURS, np.float16([25, 30, 49.5]), [1, 6, 1.5]),
        (HOURS, [24 * 10**12 + 5], [5]),
        (IDS, {"a": np.float16([0.5, 0.25]), "k": np.array([2049, 2051])}, [[0.5, 2049], [0.25, 2051]]),
        (TIMES, {"a": HALF, "t": 1.7e9 + 470}, [[0.5, 1.7e9 + 470]]),
        (TIMES, {"a": HALF, "t": 1_700_000_470}, [[0.5, 1.7e9 + 470]]),
        (cb.Finite(["a", "b", "c"]), np.uint8([0, 1, 2]), [0, 1, 2]),
        (cb.Finite(["20240101", "20240102"]), [20240102, 20240101], [1, 0]),
    ],
)
def test_no_digit_is_lost_at_the_door(domain, given, wanted, wide):
    with jax.enable_x64(wide):
        np.testing.assert_array_equal(np.asarray(enter(domain, given).values, float), wanted)


def test_names_that_are_numbers():
    frame = pd.DataFrame({2: np.linspace(0, 1, 40), 1: np.linspace(1, 0, 40) ** 2})
    stated = cb.Problem(
        lambda x, y, xi, eta: (y - x) ** 2 + x**2, lambda x, y, xi, eta: (y - eta) ** 2, 0.1, 0.0,
        cb.Mixed({1: cb.Interval(0, 1), 2: cb.Interval(0, 1)}),
    )  # fmt: skip
    found = cb.solve(stated, cb.Samples(frame, frame[1].to_numpy()), basis=cb.Chebyshev(2, index=cb.TotalDegree()))
    wanted = found.policy({1: frame[1].to_numpy(), 2: frame[2].to_numpy()})
    same(found.policy(frame), wanted)
    same(found.table(frame)["y"].to_numpy(), wanted)
    same(found.policy(frame.iloc[3]), wanted[3])
    with pytest.raises(ValueError, match="two columns of one name"):
        cb.Samples({1: [1.0], "1": [3.0]})


def test_bounds_are_copied_and_only_files_are_written(tmp_path):
    low = np.array(0.5)
    bounds = cb.Bounds(low, 3.0)
    low[...] = 2.9
    assert bounds.lo == 0.5
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(OSError, match="not a file to write to"):
            solved("line", "solved").save(path)
