"""A solution read from a file, checked against the problem and for consistency."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from ..basis import Basis, FeatureMap, basis_from_json, basis_to_json, check_basis, domain_to_json
from ..ground import MOST_LISTED, archive, double, in_double, path_given, put, ranks_promoted
from ..inference import Uncertainty
from ..iteration import Result, Saved
from ..lower import Feasibility
from ..problem import Problem
from ..study import Smoothing, form_of
from .identity import check_constraints, close_to, different_functions, features_at
from .saving import FIRST_FORMAT, FORMAT, objectives_from_file
from .solution import Solution

# what a document must hold, and of which kind
_ENTRIES = {"result": str, "stats": dict, "choices": dict, "basis": dict, "domain": dict, "x": str, "W": str}


def load(path: str | Path, problem: Problem, basis: Basis | None = None) -> Solution:
    """Reads a saved solution, for the problem it belongs to; no code in the file is run.

    Raises ``ValueError`` if the file is damaged, or was solved for another problem: other functions (if their code has
    changed, they are compared by their values at a few samples kept in the file), shapes, domain or constraints.
    `basis` is needed only if the solution was found with ``Features``: a user's function is not saved, and the one
    given must have the same values.

    **Arguments:**

    - `path`: the file that ``solution.save`` wrote.
    - `problem`: the problem it was solved for.
    - `basis`: see above.

    **Returns:** a ``Solution``, with its standard errors and its state, but without its samples.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(4))
    >>> path = solution.save("run.npz")
    >>> bool((cb.load(path, case.problem).x == solution.x).all())
    True
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a cb.Problem, got {type(problem).__name__}.")
    if basis is not None:
        check_basis(basis)
    document, arrays = archive.read(path_given("load: path", path), unsealed=(FIRST_FORMAT,))
    _check_entries(path, document)
    with double():
        solution = _loaded(path, document, arrays, problem, basis)
    with ranks_promoted():
        _check_functions(path, solution, problem)
    if not in_double():
        return solution.rounded(np.float32)
    return solution.rounded(document["returned"]) if "returned" in document else solution


@contextmanager
def _reading(path: str | Path, what: str) -> Iterator[None]:
    """Turns any failure to read a part of a file into one error, in words."""
    try:
        yield
    except ValueError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{path} is damaged, or not of this library: its {what} cannot be read ({reason}).") from error


def _check_entries(path: str | Path, document: dict[str, Any]) -> None:
    version = document.get("format")
    if version not in (FIRST_FORMAT, FORMAT):
        raise ValueError(f"{path} has format {version}; this version reads formats up to {FORMAT}.")
    wrong = [name for name, kind in _ENTRIES.items() if not isinstance(document.get(name), kind)]
    if document.get("returned", "float64") not in ("float16", "bfloat16", "float32", "float64"):
        wrong.append("returned")
    if "choices" not in wrong and not all(isinstance(words, str) for words in document["choices"].values()):
        wrong.append("choices")
    if wrong:
        raise ValueError(f"{path} is damaged, or not of this library: {', '.join(wrong)} missing or invalid.")
    largest = _largest_number(document["basis"])
    if largest > MOST_LISTED:  # found before anything is made of it
        raise ValueError(f"{path} asks for a basis with {largest} functions, more than {MOST_LISTED}: it is damaged.")


def _largest_number(recipe: Any) -> int:
    """The largest whole number in the recipe of a basis, seeds apart."""
    if isinstance(recipe, dict) and "array" not in recipe:
        recipe = [part for name, part in recipe.items() if name != "seed"]
    if isinstance(recipe, list):
        return max(map(_largest_number, recipe), default=0)
    return recipe if isinstance(recipe, int) else 0


def _loaded(
    path: str | Path, document: dict[str, Any], arrays: dict[str, np.ndarray], problem: Problem, basis: Basis | None
) -> Solution:
    """What a file holds, in the precision it was saved in."""
    first = document["format"] == FIRST_FORMAT
    if document["domain"] != domain_to_json(problem.domain):
        raise ValueError(
            f"{path} was solved on another domain ({document['domain']}) than the problem's ({problem.domain!r})."
        )
    if basis is not None and basis_to_json(basis) != document["basis"]:
        raise ValueError(f"{path} was solved in the basis {document['basis']}, not in {basis!r}. Pass the former.")
    fitted = _basis_of_file(path, document, arrays, problem, basis)
    x = _rebuilt(path, "x", document, arrays, problem.x0)
    form = form_of(problem) if problem.constraints else None
    unknown_y = problem.y0 if form is None else form.enter(problem.y0)
    like_W = jax.tree.map(lambda y: jax.ShapeDtypeStruct((fitted.size, *y.shape), y.dtype), unknown_y)
    W = _rebuilt(path, "W", document, arrays, like_W)
    with _reading(path, "result"):
        words = document["result"]
        if first:
            result = Result.from_words(words)
            detail = words.removeprefix(result).strip() if words.startswith(result) else ""
        else:
            result, detail = Result[words], str(document["detail"])
    if result.good and not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((x, W))):
        raise ValueError(f"{path} says that it converged, but x or W hold NaN or infinity: it is damaged.")
    kept = None if first else document.get("state")
    with _reading(path, "state"):
        state = None if kept is None else Saved(archive.in_order(arrays, "state"), str(kept))
    with _reading(path, "document"):
        words, smoothing, met = (document.get(name) for name in ("uncertainty", "smoothing", "feasibility"))
        constraints = tuple(map(str, document.get("constraints", ())))
        known = None if words is None else Uncertainty.from_file(words, archive.group(arrays, "uncertainty/"))
        barrier = None if smoothing is None else Smoothing.from_json(smoothing)
        feasible = None if met is None else Feasibility.from_json(met)
    check_constraints(problem, constraints, str(path))
    history = archive.group(arrays, "history/")
    if any(curve.dtype.kind not in "biuf" for curve in history.values()):
        raise ValueError(f"{path} is damaged, or not of this library: its history holds text.")
    with _reading(path, "objectives"):
        objectives = objectives_from_file(document, arrays, problem.x0, problem.y0)
    return Solution(
        x, W, fitted, result, history, document["stats"], document["choices"], state, detail,
        inference=known, form=form, smoothing=barrier, feasibility=feasible, constraints=constraints,
        objectives=objectives,
    )  # fmt: skip


def _basis_of_file(
    path: str | Path, document: dict[str, Any], arrays: dict[str, np.ndarray], problem: Problem, basis: Basis | None
) -> FeatureMap:
    """The basis, checked: as many functions as coefficients in the file, a user's functions with the same values."""
    with _reading(path, "basis"):
        recipe = basis_from_json(document["basis"]) if basis is None else basis
        constant, transform = arrays["basis/constant"], arrays.get("basis/transform")
        raw = len(constant) if transform is None else len(transform)
        fits = constant.ndim == 1 and (transform is None or transform.shape == (raw, len(constant)))
        one = jax.ShapeDtypeStruct((1, *problem.domain.shape), np.float64)
        wide = eqx.filter_eval_shape(lambda xi: recipe.evaluate(problem.domain, xi), one).shape[-1]
        if not fits or wide != raw:
            raise ValueError(f"{path}: its basis has {wide} functions, but coefficients for {raw}: it is damaged.")
        fitted = FeatureMap(recipe, problem.domain, *put((transform, constant)))
    if "features/values" in arrays and "features/xi" in arrays:
        here = features_at(recipe, problem.domain, arrays["features/xi"])
        if not close_to(np.float64, arrays["features/values"], here):
            raise ValueError(
                f"{path} was solved with other Features: the functions of the basis given have other values. Pass the "
                "basis it was solved in; another function would give another policy."
            )
    return fitted


def _rebuilt(
    path: str | Path, name: str, document: dict[str, Any], arrays: dict[str, np.ndarray], like: PyTree
) -> PyTree:
    """``x`` or ``W``, in the structure and the shapes that the problem asks for."""
    with _reading(path, name):
        saved = archive.in_order(arrays, name)
    shapes = [leaf.shape for leaf in saved]
    wanted = [tuple(leaf.shape) for leaf in jax.tree.leaves(like)]
    rebuilt = jax.tree.unflatten(jax.tree.structure(like), saved) if len(saved) == len(wanted) else None
    if shapes != wanted or archive.fingerprint(rebuilt) != document[name]:
        raise ValueError(
            f"{path}: {name} does not fit this problem: saved as {document[name]}, wanted shapes {wanted}. Load it "
            "with the problem it was solved for."
        )
    return put(rebuilt)


def _check_functions(path: str | Path, solution: Solution, problem: Problem) -> None:
    """Raises if the problem has other functions than the solution was found with."""
    if solution.objectives is None:
        return  # a file of an earlier version, or coefficients that a caller lifted
    if solution.objectives.kept is None:
        warnings.warn(
            f"{path}: cannot check that the problem has the functions it was solved for, since eta is an instance of "
            "a user-defined class. Use a dict or a tuple of arrays to have it checked.",
            stacklevel=3,
        )
        return
    try:
        others = different_functions(solution.objectives, solution.x, solution.at, problem)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} was solved for another problem: {error}") from error
    if others:
        words = "; ".join(f"{name} is another function: {by}" for name, by in others.items())
        raise ValueError(
            f"{path} was solved for another problem: {words}. Load it with the problem it was solved for, or solve "
            "this one."
        )
