"""Many solves from few compiled programs, and kept on disk, so that a list can be stopped and started at any moment."""

from .grid import solve_grid
from .store import Run, Runs, name_of
from .tasks import SweepError, Task, sweep, tabulate
from .together import solve_all, stacked, taken
