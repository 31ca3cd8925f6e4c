"""The two experiments of the paper, run with its printed parameters, and a verdict on each of its claims."""

from .reproduce import print_verdicts, reproduce_experiment, write_joint_report, write_report
