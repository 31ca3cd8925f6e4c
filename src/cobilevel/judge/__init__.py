"""How good a solution is: a certificate against the problem as stated, figures on new data, the spread of ``x``."""

from .bootstrap import Bootstrap as Bootstrap
from .bootstrap import bootstrap as bootstrap
from .certificate import Certificate as Certificate
from .certificate import Constants as Constants
from .certify import certify as certify
from .estimates import Estimate as Estimate
from .estimates import mean_estimate as mean_estimate
from .estimates import norm_estimate as norm_estimate
from .estimates import runs_estimate as runs_estimate
from .evaluate import Evaluation as Evaluation
from .evaluate import evaluate as evaluate
