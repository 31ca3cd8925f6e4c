"""What is behind the command line: the demonstration, a problem stated in a file, the benchmarks."""

from .bench import chosen_benchmarks as chosen_benchmarks
from .bench import run_benchmarks as run_benchmarks
from .bench import speed_benchmarks as speed_benchmarks
from .solve import demo as demo
from .solve import solve_file as solve_file
