"""The lower level, exactly: minimised over coefficients or context by context, with the hypergradient there."""

from ..derivatives import DENSE_LIMIT as DENSE_LIMIT
from .constraints import feasibility_of as feasibility_of
from .constraints import with_barrier as with_barrier
from .damped_newton import Dense as Dense
from .damped_newton import MatrixFree as MatrixFree
from .damped_newton import minimise as minimise
from .damped_newton import newton_steps as newton_steps
from .per_context import MISSING as MISSING
from .per_context import Law as Law
from .per_context import LowerSolution as LowerSolution
from .per_context import exact_lower as exact_lower
from .per_context import law_at as law_at
from .per_context import law_is_known as law_is_known
from .per_context import lower_along as lower_along
from .per_context import solve_each as solve_each
from .per_context import trouble_with as trouble_with
from .reduced_at_x import Point as Point
from .reduced_at_x import lower_size as lower_size
from .reduced_at_x import solve_at as solve_at
from .reduced_at_x import solve_lower as solve_lower
