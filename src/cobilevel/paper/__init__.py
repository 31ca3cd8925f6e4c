"""The two experiments of the paper, run with its printed parameters, and a verdict on each of its claims."""

from .reproduce import print_verdicts as print_verdicts
from .reproduce import reproduce_experiment as reproduce_experiment
from .reproduce import write_joint_report as write_joint_report
from .reproduce import write_report as write_report
