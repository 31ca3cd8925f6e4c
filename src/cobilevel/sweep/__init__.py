"""Many solves from few compiled programs, and kept on disk, so that a list can be stopped and started at any moment."""

from .bundles import Bundle as Bundle
from .bundles import How as How
from .bundles import Pool as Pool
from .bundles import Trials as Trials
from .bundles import solve_all as solve_all
from .grid import solve_grid as solve_grid
from .store import Run as Run
from .store import Runs as Runs
from .store import name_of as name_of
from .tasks import SweepError as SweepError
from .tasks import Task as Task
from .tasks import sweep as sweep
from .tasks import tabulate as tabulate
