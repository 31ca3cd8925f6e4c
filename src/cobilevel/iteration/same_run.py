"""What a solve is, as digests by name: two that agree in all of them take the same steps."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..basis import Basis, basis_to_json
from ..problem import Study, objective_digest, value_digest
from .solver import Solver


def run_digests(
    study: Study, solver: Solver, key: jax.Array, basis: Basis | None, settings: Mapping[str, Any]
) -> dict[str, str]:
    """The parts of a solve that decide what comes out, each as a digest, by the name an error would call it."""
    problem, functions = study.problem, objective_digest(study)
    levels = [study.upper] if study.shared else [study.upper, study.lower]
    parts = {
        "samples": ([level.known_by() for level in levels], functions.pop("samples", "")),
        "x0, y0": (problem.x0, problem.y0),
        "x_bounds": problem.x_bounds,
        "domain": repr(problem.domain),
        "basis": "chosen" if basis is None else basis_to_json(basis),
        "solver": solver,
        "key": key,
        "precision": np.dtype(study.dtype),
        **settings,
    }
    return functions | {name: value_digest(part) for name, part in parts.items()}
