"""A user's function as data: traced once, what it depends on, its parts that are known, its failures in words."""

from .description import PARTIAL, digest, key_of
from .failures import failure
from .operations import Listing, Operation, depends_on, known_parts
from .stopped import stopped
from .traced import Sampler, Traced, anew, check_derivatives, first_derivatives, second_derivatives, trace_objective
