"""What the user states: contexts, data (and the part looked at where they are many), objectives, constraints."""

from .array_checks import decision_like, one_length
from .constraints import Bounds, Constraint, Equalities, Inequalities, Simplex, check_bounds_kept, check_point_kept
from .data import (
    CONTEXTS_EACH,
    LOOK_ROWS,
    SAMPLES_EACH,
    Data,
    Level,
    Levels,
    Look,
    Product,
    Samples,
    Stream,
    contexts_field,
    no_pool,
    packed_level,
)
from .distributions import Distribution, Mixture, TruncatedNormal, Uniform
from .domain import Box, Domain, Finite, Interval, Periodic, Unbounded
from .draw_checks import CONTEXTS_DRAWN_AT, check_conditional
from .frames import Frame, domain_of, is_frame
from .mixed import Mixed, Unpacked, UnpackedDraw, check_contexts_kept, check_domain_kept, columns_of, never_seen
from .problem import Problem
from .spread import SpreadSamples, spread
