"""What is behind the command line: a demonstration, problems in files, the gallery, benchmarks, comparisons."""

from .bench import run_benchmarks, speed_benchmarks
from .compare import METHOD_NAMES, compare_methods, compare_one
from .gallery import list_gallery, solve_entry
from .solve import demo, solve_file
