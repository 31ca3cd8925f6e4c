"""Whether the functions of a problem are those that a solution was found with: by what they do, else by their values.

Code that was rewritten, or another version of JAX, gives another digest of the same function. Then values and gradients
decide, at a few points that are kept with the solution.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from ..keys import as_key
from ..programs import program
from .data import Level, Samples
from .objectives import digests_of, objective_digest, precision_of, traced_parts
from .problem import Problem
from .stable_digest import PARTIAL
from .study import Study, as_of_now
from .traced import Traced, first_derivatives

_PROBED = 16  # at which values and gradients are kept: four samples for each way of moving x and y
_AWAY = 0.1  # how far x and y are moved, of their size: at the answer itself, slopes and values may all be zero
# What values may differ by, of their size: in double, half of the digits, which rewriting a sum never costs; in single,
# what a graphics card's products of matrices keep (ten bits).
_SAME_TO = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-3}
_SAMPLES_OF = {"upper": "upper", "lower": "lower", "constraints": "lower"}  # whose samples a function is looked at with
_VALUE_COLUMN, _SLOPE_COLUMNS = (
    slice(0, 1),
    (slice(1, 3), slice(3, 5)),
)  # columns: the value; of both gradients norm and a product


@dataclass(frozen=True, eq=False)
class Looked:
    """Samples to look at functions with, and a ``y`` for each."""

    xi: np.ndarray
    eta: PyTree[np.ndarray]
    y: PyTree[np.ndarray]


@dataclass(frozen=True, eq=False)
class Probe:
    """Points and what functions are there.

    `x`: two decisions, stacked; `rows`: samples of both levels; `values`: by function, one point a row.
    """

    x: PyTree[np.ndarray]
    rows: Mapping[str, Looked]
    values: Mapping[str, Float[np.ndarray, "points 5"]] = field(default_factory=dict)

    def seen(self, parts: Mapping[str, Traced]) -> dict[str, np.ndarray]:
        """Values and gradients of functions at these points."""
        found = {}
        for name, part in parts.items():
            rows = self.rows[_SAMPLES_OF[name]]
            eta = None if name == "constraints" else rows.eta
            found[name] = np.asarray(_values_along(part, self.x, rows.y, rows.xi, eta), float)
        return found


@program
def _values_along(function: Traced, xs: PyTree, ys: PyTree, xi: Any, eta: PyTree) -> Float[Array, "points 5"]:
    def at(place: Array) -> Array:
        x = jax.tree.map(lambda a: a[place % 2], xs)
        args = (x, *jax.tree.map(lambda a: a[place], (ys, xi, eta)))
        slopes = [ravel_pytree(part)[0] for part in first_derivatives(function)(*args)]
        along = [jnp.dot(jnp.cos(1.0 + jnp.arange(len(part), dtype=part.dtype)), part) for part in slopes]
        sizes = [jnp.linalg.norm(part) for part in slopes]
        return jnp.stack([function(*args), sizes[0], along[0], sizes[1], along[1]])

    return jax.lax.map(at, jnp.arange(_PROBED))


@dataclass(frozen=True, eq=False)
class Objectives:
    """The functions that a solution was found with: those of a study, or what a file kept of them."""

    dtype: Any
    study: Study | None = None
    known: Mapping[str, str] | None = None
    kept: Probe | None = None

    @staticmethod
    def of(study: Study) -> "Objectives":
        """Nothing is computed until something is asked."""
        return Objectives(study.dtype, study)

    @cached_property
    def digests(self) -> Mapping[str, str]:
        """What each function does."""
        return objective_digest(self.study) if self.known is None and self.study is not None else self.known or {}

    def probe(self, x: PyTree, policy: Callable[[Any], PyTree]) -> Probe | None:
        """Points around a decision and its policy, with values there; what a file kept, where there is no study."""
        if self.study is None or self.study.stated is None:
            return self.kept
        with precision_of(self.dtype):
            parts = traced_parts(self.study.stated)
            levels = {"upper": self.study.upper, "lower": self.study.lower}
            rows = {name: _rows_of(level, policy) for name, level in levels.items()}
            moved = self.study.stated.bounds.project(_moved(x, self.dtype))
            xs = jax.tree.map(lambda a, b: np.stack([np.asarray(a, self.dtype), np.asarray(b)]), x, moved)
            bare = Probe(xs, rows)
            return Probe(xs, rows, bare.seen(parts))


def _rows_of(level: Level, policy: Callable[[Any], PyTree]) -> Looked:
    """Samples of a level, at every other pair the policy itself, else values away from it."""
    some = _samples_of(level)
    y = jax.tree.map(np.asarray, policy(some.xi))
    pairs = np.arange(_PROBED) // 2 % 2 == 1
    choose = lambda here, there: np.where(pairs.reshape(-1, *[1] * (here.ndim - 1)), there, here)
    return Looked(np.asarray(some.xi), jax.tree.map(np.asarray, some.eta), jax.tree.map(choose, y, _moved(y, None)))


def _samples_of(level: Level) -> Samples:
    """As many as there are points, the same at each call."""
    some = level.look(as_key(0), _PROBED, _PROBED).samples
    return some.rows(np.arange(_PROBED) % len(some))


def _moved(tree: PyTree, dtype: Any) -> PyTree:
    """Every number moved by a share of its size, and of the others'."""

    def move(leaf: Any) -> np.ndarray:
        given = np.asarray(leaf, float)
        size = float(np.mean(np.abs(given))) if given.size else 0.0
        step = _AWAY * (np.abs(given) + (size or 1.0))
        moved = given + step * np.cos(1.0 + np.arange(given.size)).reshape(given.shape)
        return np.asarray(moved, np.asarray(leaf).dtype if dtype is None else dtype)

    return jax.tree.map(move, tree)


def other_functions(
    saved: Objectives, x: PyTree, policy: Callable[[Any], PyTree], now: Study | Problem
) -> dict[str, str]:
    """Which functions are others than those saved, and by how much, in words; none where all are the same.

    `x`, `policy`: the solution they were saved with. `now`: a study, or a problem without data, whose functions are
    traced for the samples that were kept.
    """
    with precision_of(saved.dtype):
        found = Objectives.of(now).digests if isinstance(now, Study) else {}
        if isinstance(now, Study) and not _doubted(saved.digests, found):
            return {}
        probe = saved.probe(x, policy)
        stated = now.stated if isinstance(now, Study) else now
        if probe is None or stated is None:
            return {}
        if not isinstance(now, Study):
            level = {name: Samples(rows.xi, rows.eta) for name, rows in probe.rows.items()}
            stated = as_of_now(stated.astype(saved.dtype), level["upper"], level["lower"])
        parts = traced_parts(stated)
        found = found or digests_of(parts)
        doubted = _doubted({name: part for name, part in saved.digests.items() if name != "samples"}, found)
        here = probe.seen({name: part for name, part in parts.items() if name in doubted and name in probe.values})
        words = {name: _differs(probe.values[name], table, saved.dtype) for name, table in here.items()}
        words |= {name: "there are none in one of them" for name in doubted if name not in here and name != "samples"}
        if isinstance(now, Study) and saved.digests.get("samples") != found.get("samples"):
            words["samples"] = _draws_differ(probe, now, saved.dtype)
        return {name: said for name, said in words.items() if said}


def _doubted(saved: Mapping[str, str], found: Mapping[str, str]) -> set[str]:
    """The names under which there is not the same digest, or one that does not see all."""
    names = saved.keys() | found.keys()
    return {name for name in names if saved.get(name) != found.get(name) or saved[name].endswith(PARTIAL)}


def _differs(before: np.ndarray, after: np.ndarray, dtype: Any) -> str:
    """By how much, of the size of values or of gradients; empty where that is rounding."""
    if before.shape != after.shape:
        return "it is of another shape"
    allowed = _SAME_TO.get(np.dtype(dtype), _SAME_TO[np.dtype(np.float32)])
    for what, columns in (("its values", _VALUE_COLUMN), *(("its gradients", part) for part in _SLOPE_COLUMNS)):
        one, other = before[:, columns], after[:, columns]
        finite = np.isfinite(one) & np.isfinite(other)
        if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
            return f"{what} are infinite or NaN at other points"
        size = max(np.max(np.abs(part), where=finite, initial=0.0) for part in (one, other))
        gap = float(np.max(np.abs(one - other), where=finite, initial=0.0))
        if gap > allowed * size:
            return f"{what} differ by up to {gap / size:.2g} of their size"
    return ""


def _draws_differ(probe: Probe, now: Study, dtype: Any) -> str:
    """Whether streams draw other samples with the same key."""
    for name, level in (("upper", now.upper), ("lower", now.lower)):
        kept, some = probe.rows[name], _samples_of(level)
        before, after = (jax.tree.leaves((part.xi, part.eta)) for part in (kept, some))
        pairs = [(np.asarray(a, float), np.asarray(b, float)) for a, b in zip(before, after, strict=False)]
        if len(before) != len(after) or not all(close_to(a, b, dtype) for a, b in pairs):
            return "they are drawn otherwise"
    return ""


def close_to(one: np.ndarray, other: np.ndarray, dtype: Any) -> bool:
    """Whether numbers in a dtype are the same but for rounding, of the size of the largest."""
    if one.shape != other.shape:
        return False
    allowed = _SAME_TO.get(np.dtype(dtype), _SAME_TO[np.dtype(np.float32)])
    size = np.max(np.abs(one), where=np.isfinite(one), initial=0.0)
    return np.allclose(one, other, rtol=0, atol=allowed * size, equal_nan=True)
