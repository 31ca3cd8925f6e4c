"""How good a solution is: a certificate with intervals, figures on new data, the bootstrap of ``x``."""

from .bootstrap import Bootstrap as Bootstrap
from .bootstrap import bootstrap as bootstrap
from .certificate import Certificate as Certificate
from .certificate import Constants as Constants
from .certify import certify as certify
from .evaluate import Evaluation as Evaluation
from .evaluate import evaluate as evaluate
from .evaluate import rounding_error as rounding_error
from .intervals import Estimate as Estimate
from .intervals import mean_estimate as mean_estimate
from .intervals import norm_estimate as norm_estimate
from .intervals import runs_estimate as runs_estimate
