"""Is this the same problem, data and run? One answer for ``load``, ``resume``, checkpoints and the judges.

A traced function is recognised by a digest of its operations and numbers. Rewritten code, or another version of JAX,
gives another digest for the same function. Then values and gradients at a few points, kept with the solution, decide.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..basis import Basis, basis_to_json
from ..functions import PARTIAL, Traced, digest, first_derivatives, second_derivatives, trace_objective
from ..ground import as_key, double, program
from ..problem import LOOK_ROWS, Domain, Level, Problem, Samples, Unpacked
from ..study import Study, as_of_now, some_context, statement_of

_POINTS = 16  # at which values are compared: four samples for each way of moving x and y
# columns of a table of values: the value itself, then the norm of each gradient and its product with fixed weights
_COLUMNS = {"its values": slice(0, 1), "its gradients in x": slice(1, 3), "its gradients in y": slice(3, 5)}
_NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")


# functions -----------------------------------------------------------------------------------------------------------


def _weights(count: int) -> np.ndarray:
    """Distinct numbers between -1 and 1."""
    return np.cos(1.0 + np.arange(count))


def _constraints_as_one(problem: Problem) -> Traced:
    """A sum over slacks and residuals of equalities, with weights that all differ: it changes with any constraint."""

    def total(x: Any, y: Any, xi: Any, eta: Any) -> Any:
        flat, parts = ravel_pytree(y)[0], []
        for one in problem.constraints:
            slack, stated = one.slack(x, y, xi), one.equalities(problem.y0)
            parts += [] if slack is None else [slack]
            if stated is not None:
                parts.append(jnp.asarray(stated[0], flat.dtype) @ flat - jnp.asarray(stated[1](x, xi), flat.dtype))
        together = jnp.concatenate([jnp.ravel(part) for part in parts])
        return jnp.dot(jnp.asarray(1 + _weights(len(together)) / 2, together.dtype), together)

    context = problem.domain.snap(some_context(problem), jax.tree.leaves(problem.y0)[0].dtype)
    return trace_objective(Unpacked(total, problem.domain), (problem.x0, problem.y0, context, None), second_derivatives)


def _functions_of(problem: Problem) -> dict[str, Traced]:
    """The functions of a problem whose objectives are traced, by name; all constraints as one."""
    parts: dict[str, Any] = {"upper": problem.upper, "lower": problem.lower}
    return parts | ({"constraints": _constraints_as_one(problem)} if problem.constraints else {})


@contextmanager
def _precision_of(dtype: Any) -> Iterator[None]:
    """Where functions are traced and evaluated in a dtype, as a study does: they may hold numbers in another."""
    with double() if dtype == np.float64 else nullcontext(), jax.numpy_dtype_promotion("standard"):
        yield


def function_digests(study: Study) -> dict[str, str]:
    """What the functions of a study do, with all their numbers: 64 hexadecimal digits each, the same in every process
    with the same versions of JAX and of this library.

    The names are ``upper`` and ``lower``; ``constraints`` if there are any, and ``samples`` for the draws of streams.
    A digest that ends in ``?`` is incomplete, since the function calls back into Python. Nothing is compiled.
    """
    if study.stated is None:
        raise ValueError("this study was not made by Study.of, so it does not hold the user's functions.")
    with _precision_of(study.dtype):
        digests = {name: part.digest() for name, part in _functions_of(study.stated).items()}
    levels: Any = (study.upper, study.lower)
    draws = [level.draw for level in levels if level.endless]
    if draws:
        known = digest([(draw.drawing.program, jax.tree.leaves(draw.arrays)) for draw in draws])
        digests["samples"] = known + PARTIAL * any(draw.drawing.program is None for draw in draws)
    return digests


class ProbeRows(NamedTuple):
    """Samples at which functions are evaluated, and a ``y`` for each: the policy, and values away from it."""

    xi: np.ndarray
    eta: PyTree[np.ndarray]
    y: PyTree[np.ndarray]


@dataclass(frozen=True, eq=False)
class Probe:
    """Points, and the values of functions there.

    `x`: two decisions, stacked; `rows`: samples of both levels; `values`: by function, one row per point.
    """

    x: PyTree[np.ndarray]
    rows: Mapping[str, ProbeRows]
    values: Mapping[str, Float[np.ndarray, "points 5"]]


def _evaluated(functions: Mapping[str, Traced], x: PyTree, rows: Mapping[str, ProbeRows]) -> dict[str, np.ndarray]:
    """Values and gradients of functions at the points of a probe; constraints at the samples of the lower level."""
    tables = {}
    for name, function in functions.items():
        xi, eta, y = rows["upper" if name == "upper" else "lower"]
        tables[name] = np.asarray(_values(function, x, y, xi, None if name == "constraints" else eta), float)
    return tables


@program
def _values(function: Traced, xs: PyTree, ys: PyTree, xi: Any, eta: PyTree) -> Float[Array, "points 5"]:
    def at(place: Array) -> Array:
        x = jax.tree.map(lambda a: a[place % 2], xs)
        args = (x, *jax.tree.map(lambda a: a[place], (ys, xi, eta)))
        slopes = [ravel_pytree(part)[0] for part in first_derivatives(function)(*args)]
        along = [jnp.dot(jnp.asarray(_weights(len(part)), part.dtype), part) for part in slopes]
        sizes = [jnp.linalg.norm(part) for part in slopes]
        return jnp.stack([function(*args), sizes[0], along[0], sizes[1], along[1]])

    return jax.lax.map(at, jnp.arange(len(xi)))


@dataclass(frozen=True, eq=False)
class Objectives:
    """The functions that a solution was found with: those of a study, or their digests and values from a file."""

    dtype: Any
    study: Study | None = None
    known: Mapping[str, str] | None = None
    kept: Probe | None = None

    @staticmethod
    def of(study: Study) -> "Objectives":
        """The functions of a study; nothing is computed until needed."""
        return Objectives(study.dtype, study)

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """What each function does."""
        return function_digests(self.study) if self.known is None and self.study is not None else self.known or {}

    @property
    def apart(self) -> bool:
        """Whether each level had rows of its own, as far as is known."""
        if self.study is not None:
            return not self.study.shared
        rows = {} if self.kept is None else self.kept.rows
        kept = [jax.tree.leaves((rows[name].xi, rows[name].eta)) for name in ("upper", "lower") if rows]
        return bool(rows) and (len(kept[0]) != len(kept[1]) or not all(map(np.array_equal, *kept)))

    def kept_of(self, x: PyTree, policy: Callable[[Any], PyTree]) -> "Objectives":
        """The same without the functions: their digests, and values at a few points; warns if there are none."""
        try:
            probe = self.probe(x, policy)
        except Exception as error:  # functions that fail away from the samples; a run that took hours is kept even so
            warnings.warn(f"no values of the objectives are saved, so load cannot compare them: {error}", stacklevel=5)
            probe = None
        return Objectives(self.dtype, None, self.digests, probe)

    def probe(self, x: PyTree, policy: Callable[[Any], PyTree], points: int = _POINTS) -> Probe | None:
        """Points around a decision and its policy, with values there; without a study, those kept in the file."""
        if self.study is None or self.study.stated is None:
            return self.kept
        with _precision_of(self.dtype):
            levels = {"upper": self.study.upper, "lower": self.study.lower}
            rows = {name: _probe_rows(level, policy, points) for name, level in levels.items()}
            moved = self.study.stated.bounds.project(_moved(x, self.dtype))
            xs = jax.tree.map(lambda a, b: np.stack([np.asarray(a, self.dtype), np.asarray(b)]), x, moved)
            return Probe(xs, rows, _evaluated(_functions_of(self.study.stated), xs, rows))


def _probe_rows(level: Level, policy: Callable[[Any], PyTree], points: int) -> ProbeRows:
    """Samples of a level: at every other pair of them the policy itself, at the others values away from it."""
    xi, eta = _probe_samples(level, points)
    y = jax.tree.map(np.asarray, policy(xi))
    pairs = np.arange(points) // 2 % 2 == 1
    choose = lambda here, there: np.where(pairs.reshape(-1, *[1] * (here.ndim - 1)), there, here)
    return ProbeRows(xi, eta, jax.tree.map(choose, y, _moved(y, None)))


def _probe_samples(level: Level, points: int = _POINTS) -> tuple[np.ndarray, PyTree[np.ndarray]]:
    """`points` samples, the same at each call: contexts and noise."""
    some = level.look(as_key(0), points, points).samples
    some = some.rows(np.arange(points) % len(some))
    return np.asarray(some.xi), jax.tree.map(np.asarray, some.eta)


def _moved(tree: PyTree, dtype: Any) -> PyTree:
    """All numbers moved, each by up to a tenth of its size and of the mean size: at the solution itself, all slopes may
    vanish."""

    def move(leaf: Any) -> np.ndarray:
        given = np.asarray(leaf, float)
        size = float(np.mean(np.abs(given))) if given.size else 0.0
        moved = given + 0.1 * (np.abs(given) + (size or 1.0)) * _weights(given.size).reshape(given.shape)
        return np.asarray(moved, np.asarray(leaf).dtype if dtype is None else dtype)

    return jax.tree.map(move, tree)


def different_functions(
    saved: Objectives, x: PyTree, policy: Callable[[Any], PyTree], now: Study | Problem
) -> dict[str, str]:
    """Which functions differ from those saved, and by how much, in words; empty if all are the same.

    `x`, `policy`: the solution they were saved with. `now`: a study, or a problem without data, whose functions are
    traced for the samples that were kept.
    """
    study = now if isinstance(now, Study) else None
    with _precision_of(saved.dtype):
        digests = {} if study is None else function_digests(study)
        if study is not None and not _doubted(saved.digests, digests):
            return {}
        probe, stated = saved.probe(x, policy), now.stated if isinstance(now, Study) else now
        if probe is None or stated is None:
            return {}
        if study is None:
            levels = (Samples(probe.rows[name].xi, probe.rows[name].eta) for name in ("upper", "lower"))
            stated = as_of_now(stated.astype(saved.dtype), *levels)
        functions = _functions_of(stated)
        digests = digests or {name: part.digest() for name, part in functions.items()}
        doubted = _doubted(saved.digests, digests) - {"samples"}
        known = doubted & functions.keys() & probe.values.keys()
        tables = _evaluated({name: functions[name] for name in sorted(known)}, probe.x, probe.rows)
        words = {name: _difference(probe.values[name], table, saved.dtype) for name, table in tables.items()}
        words |= dict.fromkeys(doubted - known, "only one of the two has it")
        if study is not None and saved.digests.get("samples") != digests.get("samples"):
            for name, level in (("upper", study.upper), ("lower", study.lower)):
                before, after = jax.tree.leaves(probe.rows[name][:2]), jax.tree.leaves(_probe_samples(level))
                alike = len(before) == len(after) and all(map(partial(close_to, saved.dtype), before, after))
                words |= {} if alike else {"samples": "they are drawn differently"}
        return {name: said for name, said in words.items() if said}


def _doubted(saved: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """The names whose digests differ or are incomplete."""
    names = saved.keys() | now.keys()
    return {name for name in names if saved.get(name) != now.get(name) or saved[name].endswith(PARTIAL)}


def _difference(before: np.ndarray, after: np.ndarray, dtype: Any) -> str:
    """By how much they differ, relative to the size of values or of gradients; empty if that is rounding."""
    if before.shape != after.shape:
        return "it has another shape"
    for what, columns in _COLUMNS.items():
        one, other = before[:, columns], after[:, columns]
        finite = np.isfinite(one) & np.isfinite(other)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return f"{what} are infinite or NaN at different points"
        size = max(np.max(np.abs(part), where=finite, initial=0.0) for part in (one, other))
        gap = float(np.max(np.abs(one - other), where=finite, initial=0.0))
        if gap > _tolerance(dtype) * size:
            return f"{what} differ by up to {gap / size:.2g} of their size"
    return ""


def _tolerance(dtype: Any) -> float:
    """How much values may differ, relative to their size: in double half of the digits, which rewriting a sum never
    costs; in single the ten bits that matrix products on a GPU keep."""
    return np.finfo(float).eps ** 0.5 if np.dtype(dtype) == np.float64 else 2.0**-10


def close_to(dtype: Any, one: Any, other: Any) -> bool:
    """Whether numbers in a dtype are the same up to rounding, relative to the largest."""
    one, other = np.asarray(one, float), np.asarray(other, float)
    if one.shape != other.shape:
        return False
    size = np.max(np.abs(one), where=np.isfinite(one), initial=0.0)
    return np.allclose(one, other, rtol=0, atol=_tolerance(dtype) * size, equal_nan=True)


# samples -------------------------------------------------------------------------------------------------------------


def share_seen(found: Objectives | None, study: Study) -> float:
    """The share of the samples of a study that are among those a solution was found from, to the nearest percent, as
    far as these are at hand. Zero where samples repeat each other anyhow, as those of a few categories do."""
    if found is None or found.study is None:
        return 0.0
    levels = study.upper.here, found.study.upper.here
    if any(level.endless or level.crossed for level in levels):
        return 0.0
    asked, known = map(_marks, levels)
    known = np.sort(known)
    if np.mean(np.diff(known) > 0) < 1 / 2:
        return 0.0
    some = asked[np.linspace(0, len(asked) - 1, min(LOOK_ROWS, len(asked))).astype(int)]
    return round(float(np.mean(known[np.searchsorted(known, some) % len(known)] == some)), 2)


def _marks(level: Any) -> Float[np.ndarray, " n"]:
    """A number for each sample, the same in either precision, made of the first numbers of its context and its noise:
    hardly ever that of another."""
    leaves = [np.asarray(leaf) for leaf in (level.xi, *jax.tree.leaves(level.eta))]
    columns = [leaf.reshape(len(leaf), -1)[:, 0].astype(np.float32).astype(float) for leaf in leaves if leaf.size]
    return sum((weight * column for weight, column in zip(_weights(len(columns)), columns, strict=True)), np.zeros(()))


# constraints and bases -----------------------------------------------------------------------------------------------


def check_constraints(problem: Problem, solved: Sequence[str], what: str) -> None:
    """Raises if a solution was found under other constraints on ``y`` than the problem has; `what` names it.

    Numbers are compared to six digits: a solution in single precision has no more of them.
    """
    rounded = lambda table: [" ".join(_NUMBER.sub(lambda m: f"{float(m[0]):.6g}", part).split()) for part in table]
    own = statement_of(problem)
    if rounded(solved) != rounded(own):
        words = lambda table: "; ".join(table[:4]) or "none"
        raise ValueError(
            f"{what} was found under other constraints on y ({words(tuple(solved))}) than this problem has "
            f"({words(own)}). Solve again, or pass the problem it was solved for."
        )


def needs_function(recipe: Any) -> bool:
    """Whether a recipe, or a part of it, uses a user's function, which no file holds."""
    if isinstance(recipe, dict):
        return recipe.get("name") == "Features" or needs_function([*recipe.values()])
    return isinstance(recipe, list) and any(map(needs_function, recipe))


def some_contexts(domain: Domain) -> np.ndarray:
    """Contexts all over a domain, the same at each call."""
    with double():
        places = _weights(_POINTS * domain.dimension).reshape(_POINTS, -1)
        return domain.snap(domain.place(places), np.float64)


def features_at(basis: Basis, domain: Domain, xi: np.ndarray) -> Float[np.ndarray, "n raw"]:
    """The functions of a basis at contexts, before fitting mixes them."""
    with double():
        return np.asarray(basis.evaluate(domain, np.asarray(xi)), float)


def same_features(one: Basis, other: Basis, domain: Domain) -> bool:
    """Whether two bases of the same recipe have the same values, if they include a user's functions."""
    if one is other or not needs_function(basis_to_json(one)):
        return True
    xi = some_contexts(domain)
    return close_to(np.float64, features_at(one, domain, xi), features_at(other, domain, xi))


# runs ----------------------------------------------------------------------------------------------------------------


def run_digests(
    study: Study, solver: Any, key: jax.Array, basis: Basis | None, settings: Mapping[str, Any]
) -> dict[str, str]:
    """The parts of a solve that determine its outcome, as digests by the names used in errors: two solves that agree in
    all of them take the same steps."""
    problem, functions = study.problem, function_digests(study)
    levels = [study.upper] if study.shared else [study.upper, study.lower]
    parts = {
        "samples": ([jax.tree.leaves(level) for level in levels], functions.pop("samples", "")),
        "x0, y0": (problem.x0, problem.y0),
        "x_bounds": problem.x_bounds,
        "domain": repr(problem.domain),
        "basis": "chosen" if basis is None else basis_to_json(basis),
        "solver": solver,
        "key": key,
        "precision": np.dtype(study.dtype),
        **settings,
    }
    hidden = [name for name, known in functions.items() if known.endswith(PARTIAL)]
    values = _values_at_start(study, hidden) if hidden else {}
    return functions | {name: digest(part) for name, part in (parts | values).items()}


def _values_at_start(study: Study, names: Sequence[str]) -> dict[str, Any]:
    """Values of functions that call into Python around ``x0`` and ``y0``, at up to some thousands of samples, since
    their digests are incomplete. To six digits of the largest: machines differ in the last."""
    problem: Any = study.stated
    here = lambda xi: jax.tree.map(lambda a: np.repeat(np.asarray(a)[None], len(xi), axis=0), problem.y0)
    points = min(study.lower.count or LOOK_ROWS, LOOK_ROWS)
    probe: Any = Objectives.of(study).probe(problem.x0, here, points)
    sizes = {name: np.max(np.abs(probe.values[name]), axis=0) for name in names}
    shares = {name: probe.values[name] / np.where(sizes[name] > 0, sizes[name], 1) for name in names}
    written = lambda table: [f"{number:.6f}" for number in (np.round(table, 6) + 0.0).ravel().tolist()]
    return {name: ([f"{size:.6g}" for size in sizes[name].tolist()], written(shares[name])) for name in names}
