"""Ready problems with known answers, and what they are made of."""

from . import images as images
from .best_policy import best_coefficients as best_coefficients
from .cleaning import cleaning as cleaning
from .images import Images as Images
from .instance import Instance as Instance
from .quadratic import quadratic as quadratic
from .traffic import two_edge_traffic as two_edge_traffic
