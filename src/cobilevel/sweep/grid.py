"""Every case with every basis: the answers of ``solve``, several at a time."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ..adaptive import solve_learning
from ..answer import Solution
from ..basis import Basis, check_basis
from ..checks import whole
from ..iteration import Job, Solver
from ..keys import as_key, split_key
from ..lower import with_barrier
from ..problem import Data, Precision, Problem, Study, precision_for
from ..programs import one_thread
from ..progress import ProgressBar
from ..solvers import Newton


def solve_grid(
    cases: Sequence[tuple[Problem, Data]],
    bases: Sequence[Basis],
    solver: Solver | None = None,
    steps: int | None = None,
    key: Any = 0,
    progress: bool | None = None,
    workers: int | None = None,
) -> Iterator[list[Solution]]:
    """Solves every case with every basis: what ``solve`` gives for each.

    Newton's programs know neither the basis nor the samples, so that two serve all cases whose functions differ in
    numbers alone. Cases are solved in threads, which share them.

    **Arguments:**

    - `cases`: problems, each with its samples.
    - `bases`: how policies are written.
    - `solver`, `steps`, `key`, `progress`: as for ``solve``.
    - `workers`: how many are solved at a time; as many as there are processors when left out.

    **Returns:** an iterator that solves as it goes: for each basis in turn a list of solutions, one for each case. They
    cannot be resumed.
    """
    for basis in bases:
        check_basis(basis)
    chosen = Newton() if solver is None else solver
    limit = chosen.default_steps if steps is None else whole("steps", steps)
    workers = (os.cpu_count() or 1) if workers is None else whole("workers", workers)
    jobs = [_job(case, chosen, limit, split_key(as_key(key), 3)[2]) for case in cases]
    return _rows(jobs, bases, progress, workers)


def _rows(
    jobs: Sequence[tuple[Job, Precision]], bases: Sequence[Basis], progress: bool | None, workers: int
) -> Iterator[list[Solution]]:
    with ProgressBar(len(bases) * len(jobs), "grid", progress) as bar, ThreadPoolExecutor(workers) as threads:
        for number, basis in enumerate(bases):
            bar.update(number * len(jobs), f"{basis!r}")
            one = partial(_solved, basis)
            with one_thread():  # the switch is that of all threads: none may set it back while others are at work
                row = [one(job) for job in jobs[:1]]  # compiles for the others
                row += threads.map(one, jobs[1:])
            yield row


def _job(case: tuple[Problem, Data], solver: Solver, steps: int, key: Any) -> tuple[Job, Precision]:
    wanted = precision_for(*case, exact=isinstance(solver, Newton))
    with wanted.context():
        return Job(with_barrier(Study.of(*case, wanted)), solver, key, steps, False, one_of_many=True), wanted


def _solved(basis: Basis, case: tuple[Job, Precision]) -> Solution:
    job, wanted = case
    with wanted.context():
        found = job.run(basis) if basis.learned else solve_learning(job, basis)
    return found.rounded(wanted.returned)
