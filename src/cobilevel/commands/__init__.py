"""What is behind the command line: the demonstration, a problem stated in a file, the benchmarks."""

from .bench import run_benchmarks, speed_benchmarks
from .solve import demo, solve_file
