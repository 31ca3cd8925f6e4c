"""The cleaning experiment: weights for training images with wrong labels."""

from .experiment import CLEANING_BUDGETS as CLEANING_BUDGETS
from .experiment import Cleaning as Cleaning
from .findings import CleaningFindings as CleaningFindings
