"""The basis chosen for you: from the data at one ``x``, grown to a tolerance, or learned from the problem."""

from .choose import choose_basis as choose_basis
from .learning import choose_background as choose_background
from .learning import learn as learn
from .rounds import solve_again as solve_again
from .rounds import solve_choosing as solve_choosing
from .rounds import solve_growing as solve_growing
from .rounds import solve_learning as solve_learning
