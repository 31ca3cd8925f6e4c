"""Problem and samples checked together: the study, its constraints in standard form, the smoothing of the barrier."""

from .smoothing import UNIT_ROWS, Smoothing, length_of, scales_at, smoothing_from
from .standard_form import Constrained, Form, form_of, some_context, statement_of
from .study import Study, as_of_now, joint_contexts, precision_for
