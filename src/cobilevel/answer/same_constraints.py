"""Whether a solution was found under the constraints that a problem has."""

from collections.abc import Sequence

from ..problem import Problem, statement_of


def check_constraints(problem: Problem, solved: Sequence[str], what: str) -> None:
    """Raises where a solution was found under other constraints on ``y`` than the problem has; `what` names it."""
    own = statement_of(problem)
    if tuple(solved) != own:
        words = lambda table: "; ".join(table[:4]) or "none"
        raise ValueError(
            f"{what} was found under other constraints on y ({words(tuple(solved))}) than this problem has "
            f"({words(own)}): solve anew, or give the problem it was solved for."
        )
