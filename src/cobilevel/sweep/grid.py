"""Every case with every basis: the answers of ``solve``."""

from collections.abc import Iterator, Sequence
from typing import Any

from ..adaptive import solve_learning
from ..answer import Job, Solution
from ..basis import Basis, check_basis
from ..ground import Precision, ProgressBar, as_key, split_key, whole
from ..iteration import Solver
from ..lower import with_barrier
from ..problem import Data, Problem
from ..solvers import Newton
from ..study import Study, precision_for


def solve_grid(
    cases: Sequence[tuple[Problem, Data]],
    bases: Sequence[Basis],
    solver: Solver | None = None,
    steps: int | None = None,
    key: Any = 0,
    progress: bool | None = None,
) -> Iterator[list[Solution]]:
    """Solves every case with every basis, one after the other, as ``solve`` does.

    Each problem is checked against its samples once, for all bases. To run several at a time, use ``tabulate``, which
    calls a function in processes.

    **Arguments:**

    - `cases`: problems, each with its samples.
    - `bases`: the bases to write policies in.
    - `solver`, `steps`, `key`, `progress`: as for ``solve``.

    **Returns:** an iterator that solves as it goes: for each basis in turn, a list of solutions, one for each case. The
    solutions cannot be resumed.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> cases = [(case.problem, case.train)]
    >>> for solutions in cb.sweep.solve_grid(cases, [cb.Chebyshev(3), cb.Chebyshev(4)], progress=False):
    ...     print(solutions[0].basis.size, solutions[0].converged)
    ...
    3 True
    4 True
    """
    for basis in bases:
        check_basis(basis)
    chosen = Newton() if solver is None else solver
    limit = chosen.default_steps if steps is None else whole("steps", steps)
    key, jobs = split_key(as_key(key), 3)[2], []
    for case in cases:
        wanted = precision_for(*case, exact=isinstance(chosen, Newton))
        with wanted.context():
            study = with_barrier(Study.of(*case, wanted))
        jobs.append((Job(study, chosen, key, limit, False, one_of_many=True), wanted))
    return _rows(jobs, bases, progress)


def _rows(
    jobs: Sequence[tuple[Job, Precision]], bases: Sequence[Basis], progress: bool | None
) -> Iterator[list[Solution]]:
    with ProgressBar(len(bases) * len(jobs), "grid", progress) as bar:
        for number, basis in enumerate(bases):
            bar.update(number * len(jobs), f"{basis!r}")
            solutions = []
            for job, wanted in jobs:
                with wanted.context():
                    solution = job.run(basis) if basis.learned else solve_learning(job, basis)
                solutions.append(solution.rounded(wanted.returned))
            yield solutions
