"""The basis chosen for you: from the data at one ``x``, grown to a tolerance, or learned from the problem."""

from .choose import choose_basis
from .learning import choose_background, learn
from .rounds import solve_again, solve_choosing, solve_growing, solve_learning
