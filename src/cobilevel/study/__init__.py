"""Problem and samples checked together: the study, its constraints in standard form, the barrier and its weight."""

from .standard_form import (
    SOFT_SHARE,
    UNIT_ROWS,
    Constrained,
    Form,
    Same,
    Smoothing,
    form_of,
    length_of,
    scales_at,
    smoothing_from,
    some_context,
    statement_of,
)
from .study import Study, as_of_now, joint_contexts, parsed_level, precision_for
