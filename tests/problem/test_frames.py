"""Samples out of data frames: what each kind of column becomes, and what is refused with which words."""

import datetime as dt
import decimal
import re
import subprocess
import sys

import numpy as np
import pytest

import cobilevel as cb
from cobilevel.problem import enter

pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
LIBRARIES = pytest.mark.parametrize("library", [pandas, polars], ids=["pandas", "polars"])

TIMES = [dt.datetime(2026, 1, day, 6) for day in (1, 2, 3, 4)]
TABLE = {
    "weather": [0.1, 0.5, 0.9, 0.3],
    "hour": [1, 2, 3, 24],
    "day": ["mon", "tue", "mon", "sun"],
    "open": [True, False, True, True],
    "demand": [1.5, 2.5, 3.5, 4.5],
    "time": TIMES,
    "often": [1, 2, 3, 0],
    "lists": [[1], [2], [3], [4]],
    "holes": [1.0, None, 3.0, None],
    "gaps": [None, "a", "b", "c"],
}


def table(library, **more):
    return library.DataFrame({**TABLE, **more})


@LIBRARIES
def test_columns_reach_the_samples_by_name(library):
    found = cb.Samples.from_frame(table(library), context="weather", eta=["demand", "hour", "open"], weights="often")
    np.testing.assert_array_equal(found.xi, TABLE["weather"])
    assert list(found.eta) == ["demand", "hour", "open"]
    np.testing.assert_array_equal(found.eta["demand"], TABLE["demand"])
    np.testing.assert_array_equal(found.eta["open"], [1.0, 0.0, 1.0, 1.0])
    assert found.eta["open"].dtype == found.weights.dtype == np.float64
    assert found.eta["hour"].dtype == np.int64, "whole numbers may be codes"
    np.testing.assert_array_equal(found.weights, TABLE["often"])


@LIBRARIES
def test_one_name_gives_an_array(library):
    found = cb.Samples.from_frame(table(library), "hour", "demand")
    assert found.xi.dtype == np.float64
    np.testing.assert_array_equal(found.xi, TABLE["hour"])
    np.testing.assert_array_equal(found.eta, TABLE["demand"])
    assert cb.Samples.from_frame(table(library), "hour").eta is None


DTYPES = [
    (pandas, "Int64"), (pandas, "Float64"), (pandas, "float32"), (pandas, "category"), (pandas, "object"),
    (polars, polars.Int8), (polars, polars.UInt64), (polars, polars.Float32), (polars, polars.Decimal(10, 2)),
]  # fmt: skip


@pytest.mark.parametrize(("library", "dtype"), DTYPES, ids=str)
def test_kinds_of_numbers(library, dtype):
    series = library.Series([3, 1, 2], dtype=dtype)
    frame = library.DataFrame({"a": series, "b": series})
    found = cb.Samples.from_frame(frame, "a", "b")
    np.testing.assert_array_equal(found.xi, [3.0, 1.0, 2.0])
    np.testing.assert_array_equal(found.eta, [3, 1, 2])
    assert np.issubdtype(found.xi.dtype, np.floating)
    if "32" in str(dtype):
        assert found.xi.dtype == found.eta.dtype == np.float32, "the precision is the data's"


def test_kinds_of_objects_in_pandas():
    frame = pandas.DataFrame({
        "decimals": [decimal.Decimal("1.5"), decimal.Decimal(2)],
        "flags": pandas.Series([True, False], dtype="boolean"),
        "texts": pandas.Series(["a", "b"], dtype="string"),
        "mixed": pandas.Series([1, "a"], dtype=object),
    }).set_index(pandas.Index([7, 3]))  # fmt: skip
    np.testing.assert_array_equal(cb.Samples.from_frame(frame, "decimals", "flags").xi, [1.5, 2.0])
    np.testing.assert_array_equal(cb.Samples.from_frame(frame, "decimals", "flags").eta, [1.0, 0.0])
    for name, words in (("texts", "text"), ("mixed", "neither numbers nor text")):
        with pytest.raises(TypeError, match=f"{name!r} holds .*{words}"):
            cb.Samples.from_frame(frame, "decimals", name)


def test_frames_of_other_libraries_are_read_through_narwhals():
    narwhals = pytest.importorskip("narwhals")
    frame = narwhals.from_native(polars.DataFrame({"a": [1, 2], "b": [0.5, None], "c": [True, False]}))
    found = cb.Samples.from_frame(frame, "a", "c")
    np.testing.assert_array_equal(found.xi, [1.0, 2.0])
    np.testing.assert_array_equal(found.eta, [1.0, 0.0])
    with pytest.raises(ValueError, match="1 in 'b'"):
        cb.Samples.from_frame(frame, "a", "b")


REFUSED = [
    ({"context": "wether"}, ValueError, r"context names 'wether', .*Did you mean 'weather'.*columns are 'weather', 'h"),
    ({"context": "weather", "eta": ["quantity"]}, ValueError, "eta names 'quantity', which is not a column"),
    (
        {"context": "weather", "eta": "day"},
        TypeError,
        r"'day' holds text \('mon', 'tue', 'sun'\).*context.*encode it as numbers",
    ),
    ({"context": "weather", "eta": "time"}, TypeError, "'time' holds dates or times .*hours since.*Periodic"),
    ({"context": "time"}, TypeError, "the context column 'time' holds dates"),
    ({"context": "weather", "eta": "lists"}, TypeError, "'lists' holds values that are neither"),
    ({"context": "weather", "eta": "weather"}, ValueError, "'weather' is named in context and in eta"),
    ({"context": "weather", "eta": ["hour", "hour"]}, ValueError, "'hour' is named twice in eta"),
    ({"context": [], "eta": "hour"}, ValueError, "context must name at least one column"),
    ({"context": "weather", "weights": ["often"]}, TypeError, "weights must name one column"),
    ({"context": "weather", "weights": "day"}, TypeError, "the weights column 'day' holds text"),
]


@LIBRARIES
@pytest.mark.parametrize(("named", "error", "words"), REFUSED)
def test_what_is_refused(library, named, error, words):
    with pytest.raises(error, match=words):
        cb.Samples.from_frame(table(library), **named)


@LIBRARIES
def test_missing_values_are_counted_and_the_remedy_works(library):
    df = table(library, more=[1.0, float("nan"), 2.0, 3.0])
    with pytest.raises(ValueError, match="missing") as caught:
        cb.Samples.from_frame(df, "holes", ["more", "demand"])
    assert "2 in 'holes' (context), 1 in 'more' (eta); 2 of 4 rows" in str(caught.value)
    left = eval(re.search(r"df\..*?\)(?=, or)", str(caught.value))[0], {"df": df})
    np.testing.assert_array_equal(cb.Samples.from_frame(left, "holes", ["more", "demand"]).xi, [1.0, 3.0])
    with pytest.raises(ValueError, match=r"1 in 'gaps' \(eta\)"):
        cb.Samples.from_frame(df, "weather", "gaps")


@LIBRARIES
def test_the_encodings_that_are_named_work(library):
    df, scope = table(library), {"polars": polars}
    with pytest.raises(TypeError) as caught:
        cb.Samples.from_frame(df, "weather", "time")
    since, hour = re.search(r"the first, (.*?); or the hour of the day, (.*?), with", str(caught.value)).groups()
    np.testing.assert_array_equal(eval(since, {"df": df}), [0.0, 24.0, 48.0, 72.0])
    np.testing.assert_array_equal(eval(hour, {"df": df}), [6, 6, 6, 6])
    with pytest.raises(TypeError) as caught:
        cb.Samples.from_frame(df, "weather", "day")
    codes = np.asarray(eval(re.search(r"encode it as numbers, (.*?);", str(caught.value))[1], {"df": df, **scope}))
    assert codes[0] == codes[2]
    assert len(np.unique(codes)) == 3


def test_what_is_no_frame_of_rows():
    for frame, words in (
        ({"a": [1.0]}, "needs a pandas or polars data frame.*got dict"),
        (polars.DataFrame(TABLE).lazy(), r"collect\(\)"),
    ):
        with pytest.raises(TypeError, match=words):
            cb.Samples.from_frame(frame, "a")
    with pytest.raises(ValueError, match="no rows"):
        cb.Samples.from_frame(table(pandas)[:0], "weather")
    with pytest.raises(ValueError, match="more than one column named 'a'"):
        cb.Samples.from_frame(pandas.DataFrame([[1, 2]], columns=["a", "a"]), "a")
    with pytest.raises(ValueError, match="several levels"):
        cb.Samples.from_frame(pandas.DataFrame([[1]], columns=pandas.MultiIndex.from_tuples([("a", "b")])), "a")


def test_no_library_of_frames_is_imported_for_the_other():
    """Each in a fork of a process that has imported the package alone."""
    code = (
        "import importlib, os, sys, cobilevel as cb\n"
        "for name in ('pandas', 'polars'):\n"
        "    if child := os.fork():\n"
        "        assert os.waitpid(child, 0)[1] == 0, name\n"
        "        continue\n"
        "    frame = importlib.import_module(name).DataFrame({'a': [1.0, 2.0], 'b': [1, 2]})\n"
        "    cb.Samples.from_frame(frame, 'a', 'b')\n"
        "    assert name in sys.modules\n"
        "    os._exit(len(({'pandas', 'polars', 'narwhals'} - {name}) & set(sys.modules)))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@LIBRARIES
def test_a_list_of_contexts_reaches_the_functions_by_name(library):
    """Text stays text, booleans and whole numbers become floats; the domain packs them."""
    found = cb.Samples.from_frame(table(library), context=["weather", "day", "open", "hour"], eta="demand")
    assert list(found.xi) == ["weather", "day", "open", "hour"]
    np.testing.assert_array_equal(np.asarray(found.xi["day"]), TABLE["day"])
    domain = cb.Mixed(
        weather=cb.Interval(0, 1), day=cb.Finite(["mon", "tue", "sun"]), open=cb.Finite([0, 1]), hour=cb.Periodic(0, 24)
    )
    wanted = [[0.1, 0, 1, 1], [0.5, 1, 0, 2], [0.9, 0, 1, 3], [0.3, 2, 1, 0]]
    np.testing.assert_array_equal(enter(domain, found.xi, data=True).values, wanted)
    box = cb.Box([0.0, 0.0], [1.0, 24.0])
    by_order = cb.Samples.from_frame(table(library), context=["weather", "hour"])
    np.testing.assert_array_equal(enter(box, by_order.xi, data=True).values[:, 1], TABLE["hour"])


@LIBRARIES
def test_text_is_for_a_finite_domain(library):
    found = cb.Samples.from_frame(table(library), context="day", eta="demand")
    np.testing.assert_array_equal(enter(cb.Finite(["sun", "mon", "tue"]), found.xi, data=True).values, [1, 2, 1, 0])
    with pytest.raises(TypeError, match=r"holds strings \('mon', 'sun', 'tue'\), but contexts of Interval"):
        enter(cb.Interval(0.0, 1.0), found.xi, data=True).values
    with pytest.raises(ValueError, match=r"holds 'sun' in 1 of 4 rows"):
        enter(cb.Finite(["mon", "tue"]), found.xi, data=True).values


def test_categories_of_either_library():
    frames = (
        pandas.DataFrame({"day": pandas.Categorical(["b", "a", "b"], ["b", "a", "c"])}),
        polars.DataFrame({"day": polars.Series(["b", "a", "b"], dtype=polars.Enum(["b", "a", "c"]))}),
        polars.DataFrame({"day": polars.Series(["b", "a", "b"], dtype=polars.Categorical)}),
    )
    for frame in frames:
        np.testing.assert_array_equal(np.asarray(cb.Samples.from_frame(frame, "day").xi), ["b", "a", "b"])
        assert repr(cb.domain_of(frame, "day")) == "Finite(['a', 'b'])"


@LIBRARIES
def test_a_domain_is_proposed(library):
    found = cb.domain_of(table(library), ["weather", "day", "open", "hour"])
    assert repr(found) == (
        "Mixed(weather=Interval(0.1, 0.9), day=Finite(['mon', 'sun', 'tue']), open=Finite([0.0, 1.0]), "
        "hour=Interval(1.0, 24.0))"
    )
    samples = cb.Samples.from_frame(table(library), ["weather", "day", "open", "hour"])
    assert np.all(found.contains(enter(found, samples.xi, data=True).values))
    assert repr(cb.domain_of(table(library), "hour")) == "Interval(1.0, 24.0)"
    with pytest.raises(ValueError, match="'one' is 1 in every row"):
        cb.domain_of(table(library, one=[1, 1, 1, 1]), ["one"])
    with pytest.raises(TypeError, match="domain_of: the context column 'time' holds dates"):
        cb.domain_of(table(library), "time")


def test_columns_that_are_written_alike_are_refused():
    import pandas as pd

    frame = pd.DataFrame({1: [0.0, 1.0], "1": [2.0, 3.0], "e": [0.0, 0.0]})
    with pytest.raises(ValueError, match="more than one column named '1'"):
        cb.Samples.from_frame(frame, context=[1, "1"], eta="e")
