"""What the user states: contexts, data (with how many functions they support), objectives, constraints."""

from .data import CONTEXTS_EACH, SAMPLE_ROWS, SAMPLES_EACH, Data, Levels, Product, Samples, Stream, no_pool
from .distributions import Distribution, Mixture, Stratified, TruncatedNormal, Uniform
from .domain import Box, Domain, Interval, Periodic, Unbounded
from .door import Contexts, enter, read_columns
from .finite import Finite
from .frames import Frame, is_frame
from .input_checks import (
    CHECK_ROWS,
    CONTEXTS_DRAWN_AT,
    NO_STRING,
    Strings,
    ascending,
    check_conditional,
    decision_like,
    path_name,
)
from .level import LOOK_ROWS, Level, Look
from .mixed import Mixed, Unpacked, check_contexts_kept, crowded, never_seen
from .partitions import PartitionedSamples, Roles, samples_in
from .problem import Bounds, Equalities, Inequalities, Problem, Simplex, entry_names
from .proposals import domain_of
from .repeated import counted_once
