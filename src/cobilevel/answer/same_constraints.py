"""Whether a solution was found under the constraints that a problem has."""

import re
from collections.abc import Sequence

from ..problem import Problem, statement_of

_NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?")


def _rounded(table: Sequence[str]) -> tuple[str, ...]:
    """With numbers to six digits: a solution in single precision has no more of them."""
    return tuple(" ".join(_NUMBER.sub(lambda found: f"{float(found[0]):.6g}", words).split()) for words in table)


def check_constraints(problem: Problem, solved: Sequence[str], what: str) -> None:
    """Raises where a solution was found under other constraints on ``y`` than the problem has; `what` names it."""
    own = statement_of(problem)
    if _rounded(solved) != _rounded(own):
        words = lambda table: "; ".join(table[:4]) or "none"
        raise ValueError(
            f"{what} was found under other constraints on y ({words(tuple(solved))}) than this problem has "
            f"({words(own)}): solve anew, or give the problem it was solved for."
        )
