"""A user's function as data: traced once, what it depends on, its parts that are known, its failures in words."""

from .description import PARTIAL, digest, key_of
from .failures import failure, shapes_in_words
from .known_parts import known_parts
from .operations import Listing, Operation
from .traced import (
    Sampler,
    Traced,
    anew,
    check_derivatives,
    first_derivatives,
    kind_of,
    second_derivatives,
    trace_objective,
)
