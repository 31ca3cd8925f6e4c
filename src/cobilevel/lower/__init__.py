"""The lower level, exactly: minimised over coefficients or context by context, with the hypergradient there."""

from .by_products import curved_along, preconditioned, preconditioner, units_by_products
from .constraints import Feasibility, feasibility_of, gave_way, with_barrier
from .convexity import correlated, hidden_by_barrier
from .corners import policy_with_corners
from .damped_newton import ARMIJO, LENGTHS, ROUNDINGS, SOLVED, Dense, MatrixFree, cholesky, minimise, newton_steps
from .per_context import (
    DENSE_Y,
    MISSING,
    Law,
    LowerSolution,
    each_context,
    exact_lower,
    law_at,
    law_is_known,
    lower_along,
    solve_along,
    solve_each,
    trouble_with,
)
from .reduced_at_x import Point, lower_inverse, lower_minimum, lower_size, solve_at
