"""The two experiments of the paper, run with its printed parameters, and a verdict on each of its claims."""
