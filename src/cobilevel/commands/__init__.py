"""What is behind the command line: the demonstration, a problem stated in a file, the gallery, the benchmarks."""

from .bench import run_benchmarks, speed_benchmarks
from .gallery import list_gallery, solve_entry
from .solve import demo, solve_file
