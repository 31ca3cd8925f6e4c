"""The inverse experiment: road capacities from noisy flows."""

from .experiment import INVERSE_BUDGETS as INVERSE_BUDGETS
from .experiment import Inverse as Inverse
from .findings import InverseFindings as InverseFindings
