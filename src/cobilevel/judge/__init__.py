"""How good a solution is: a certificate with intervals, figures on new data, the bootstrap of ``x``."""

from .bootstrap import Bootstrap, bootstrap
from .certificate import Certificate, Constants
from .certify import certify
from .evaluate import Evaluation, evaluate, rounding_error
from .intervals import Estimate, mean_estimate, norm_estimate, runs_estimate
