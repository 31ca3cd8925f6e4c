"""A solution as a file: its contents, including what identifies the functions it was solved for."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ..basis import basis_to_json, domain_to_json
from ..ground import archive
from .identity import Objectives, Probe, ProbeRows, features_at, needs_function, some_contexts

FIRST_FORMAT, FORMAT = 1, 3  # the first: results as sentences, solver states of another shape, no digest at the end


def write_solution(solution: Any, path: str | Path) -> Path:
    """Writes a solution to one file, atomically."""
    x, W, transform, constant = solution.full_parts()
    arrays = {"basis/constant": np.asarray(constant)}
    if transform is not None:
        arrays["basis/transform"] = np.asarray(transform)
    state = [] if solution.state is None else solution.state.leaves
    for group, leaves in (("x", archive.to_plain(x)), ("W", archive.to_plain(W)), ("state", state)):
        arrays.update(archive.numbered(group, leaves))
    arrays.update({f"history/{name}": np.asarray(curve) for name, curve in solution.history.items()})
    words, numbers = solution.uncertainty.to_file()
    arrays.update({f"uncertainty/{name}": part for name, part in numbers.items()})
    recipe = basis_to_json(solution.basis.basis)
    if needs_function(recipe):
        arrays["features/xi"] = some_contexts(solution.basis.domain)
        arrays["features/values"] = features_at(solution.basis.basis, solution.basis.domain, arrays["features/xi"])
    objectives, probed = objectives_to_file(solution, x)
    document = {
        "format": FORMAT,
        "result": solution.result.name,
        "detail": solution.detail,
        "stats": dict(solution.stats),
        "choices": dict(solution.choices),
        "basis": recipe,
        "domain": domain_to_json(solution.basis.domain),
        "x": archive.fingerprint(x),
        "W": archive.fingerprint(W),
        "returned": str(np.dtype(solution.basis.constant.dtype)),
        "state": None if solution.state is None else solution.state.structure,
        "uncertainty": words,
        "smoothing": None if solution.smoothing is None else solution.smoothing.to_json(),
        "feasibility": None if solution.feasibility is None else asdict(solution.feasibility),
        "constraints": list(solution.constraints),
        "objectives": objectives,
    }
    return archive.write(path, document, arrays | probed)


def objectives_to_file(solution: Any, x: PyTree) -> tuple[dict[str, Any] | None, dict[str, np.ndarray]]:
    """What a file keeps of the functions: digests, and a few points with values there. A document, and arrays.

    Points are left out if ``eta`` is of a class that no file describes: then only digests are kept.
    """
    known: Objectives | None = solution.objectives
    if known is None:
        return None, {}
    entry: dict[str, Any] = {"digests": dict(known.digests), "dtype": str(np.dtype(known.dtype)), "eta": None}
    probe = known.kept_of(x, solution.at).kept
    structures = {} if probe is None else {name: _structure_to_json(rows.eta) for name, rows in probe.rows.items()}
    if probe is None or not all(structures.values()):
        return entry, {}
    arrays = archive.numbered("objectives/x", jax.tree.leaves(probe.x))
    for name, rows in probe.rows.items():
        arrays[f"objectives/{name}/xi"] = rows.xi
        arrays.update(archive.numbered(f"objectives/{name}/eta", jax.tree.leaves(rows.eta)))
        arrays.update(archive.numbered(f"objectives/{name}/y", jax.tree.leaves(rows.y)))
    arrays.update({f"objectives/values/{name}": table for name, table in probe.values.items()})
    return {**entry, "eta": structures}, arrays


def objectives_from_file(document: Any, arrays: dict[str, np.ndarray], x: PyTree, y: PyTree) -> Objectives | None:
    """The inverse of ``objectives_to_file``, for decisions and ``y`` like these."""
    entry = document.get("objectives")
    if entry is None:
        return None
    if entry["dtype"] not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(f"the file is damaged: its functions are in {entry['dtype']!r}, which is not a precision.")
    digests = {str(name): str(digest) for name, digest in entry["digests"].items()}
    probe = None if entry["eta"] is None else _probe_from_file(entry["eta"], arrays, x, y)
    return Objectives(np.dtype(entry["dtype"]), None, digests, probe)


def _probe_from_file(structures: Any, arrays: dict[str, np.ndarray], x: PyTree, y: PyTree) -> Probe:
    values = archive.group(arrays, "objectives/values/")
    points = len(values["upper"])

    def rebuilt(name: str, like: PyTree, count: int) -> PyTree:
        leaves, structure = jax.tree.flatten(like)
        saved = archive.in_order(arrays, name)
        if [leaf.shape for leaf in saved] != [(count, *np.shape(leaf)) for leaf in leaves]:
            raise ValueError(f"the file is damaged: {name} does not have the shapes of the problem.")
        return structure.unflatten(saved)

    rows = {}
    for name in ("upper", "lower"):
        leaves = archive.group(arrays, f"objectives/{name}/eta/")
        xi, eta = arrays[f"objectives/{name}/xi"], _structure_from_json(structures[name], leaves)
        if any(len(np.atleast_1d(leaf)) != points for leaf in (xi, *leaves.values())):
            raise ValueError("the file is damaged: its samples do not match the values of the functions at them.")
        rows[name] = ProbeRows(xi, eta, rebuilt(f"objectives/{name}/y", y, points))
    return Probe(rebuilt("objectives/x", x, 2), rows, values)


def _structure_to_json(tree: Any) -> Any:
    """Dicts, lists and tuples of arrays in plain words; ``None`` where there is anything else."""
    count = iter(range(len(jax.tree.leaves(tree))))

    def words(part: Any) -> Any:
        if part is None:
            return ["none"]
        if type(part) in (list, tuple):
            return [type(part).__name__, [words(each) for each in part]]
        if type(part) is dict and all(isinstance(name, str) for name in part):
            return ["dict", {name: words(part[name]) for name in sorted(part)}]  # as JAX goes through it
        return ["leaf", next(count)] if jax.tree_util.all_leaves([part]) else [str(type(part))]

    structure = words(tree)
    return structure if next(count, None) is None else None


def _structure_from_json(entry: Any, leaves: dict[str, np.ndarray]) -> Any:
    kind, parts = str(entry[0]), entry[-1]
    if kind == "none":
        return None
    if kind == "leaf":
        return leaves[str(int(parts))]
    if kind == "dict":
        return {str(name): _structure_from_json(part, leaves) for name, part in parts.items()}
    return {"list": list, "tuple": tuple}[kind](_structure_from_json(part, leaves) for part in parts)
