"""The policy as a table: contexts, what the policy does there, and whether they lie in the domain."""

from typing import Any

import jax
import numpy as np

from ..programs import put
from .contexts import context_rows
from .uncertainty import names_of

_INSIDE = "in_domain"


def component_names(rows: Any, letter: str = "y") -> tuple[str, ...]:
    """The components of ``y``, from arrays with a leading axis more: ``y``, ``y[0]``; by their own names where ``y``
    has some, ``stock``, ``stock[0]``."""
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[0], rows)
    if not isinstance(one, dict):
        return names_of(one, letter)
    return tuple(name for key in sorted(one) for name in names_of(one[key], str(key)))


def components_at(solution: Any, xi: Any) -> np.ndarray:
    """The policy with one column for each component of ``y``, in the order of their names."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(solution.policy(xi))]
    return np.concatenate([leaf.reshape(len(xi), -1) for leaf in leaves], axis=1)


def policy_names(solution: Any) -> tuple[str, ...]:
    """The components of ``y``: of the policy, since coefficients have fewer under equalities."""
    domain = solution.basis.domain
    return component_names(solution.policy(domain.place(np.zeros((1, domain.dimension)))))


def policy_table(solution: Any, contexts: Any) -> Any:
    """A data frame of the library that the contexts came in, or a dict of NumPy columns."""
    domain = solution.basis.domain
    rows = context_rows(domain, contexts, "solution.table")
    names = policy_names(solution)
    y, results = components_at(solution, rows.xi) if len(rows.xi) else np.zeros((0, len(names))), {}
    for j, name in enumerate(names):
        results[_free_name(name, rows.columns)] = y[:, j]
    results[_free_name(_INSIDE, rows.columns)] = np.asarray(domain.contains(put(rows.xi)), bool)
    return {**rows.columns, **results} if rows.frame is None else rows.frame.with_results(list(rows.columns), results)


def _free_name(name: str, taken: Any) -> str:
    return f"policy {name}" if name in taken else name
