"""``Scout``: a search that stops before it would begin on all rows."""

from ..ground import plain
from ..iteration import Result
from .newton import Newton, stages_of


class Scout(Newton):
    """``Newton`` on few of the rows, for where that leads; what its run has come to, ``Newton`` resumes on all rows.

    Where rows are not dear there are no fewer, and it is ``Newton`` to the end.
    """

    def lasting(self):
        return Newton(memory=self.memory)

    @plain
    def terminate(self, reduced, state):
        now, last = state.stage, len(stages_of(self.ready(reduced))) - 1
        few_have_ended = 0 < now.number == last and not now.begun and now.target >= 0
        return state.clock.outcome((Result.BUDGET if few_have_ended else Result.RUNNING).code)
