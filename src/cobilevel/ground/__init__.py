"""What all rooms stand on: checks of arguments, compiled programs, precision, pytrees, seeds, files, a progress bar."""

from . import archive, trees
from .archive import write_file
from .checks import (
    MEMORY_SHARE,
    MOST_KEPT,
    MOST_LISTED,
    MOST_NODES,
    entered,
    fits,
    gibibytes,
    memory_limit,
    needed,
    path_given,
    positive,
    whole,
)
from .keys import as_key, below, derived, generator, hashed, is_key, mix, split_key
from .parts import Common, Parts, room, unpickled
from .precision import REMEDY, Precision, cast, double, in_double, kept_digits, ranks_promoted
from .programs import (
    FEW,
    Held,
    arithmetic,
    empty_table,
    in_threads,
    keep_programs,
    module_of,
    on_host,
    on_host_or_compiled,
    plain,
    program,
    program_of_steps,
    put,
    quick,
    rows_at,
    unfused,
)
from .progress import ProgressBar
from .trees import as_rows, flattened, shaped_like
