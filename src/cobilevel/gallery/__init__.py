"""Ready problems with known answers, and what they are made of."""

from . import images as images
from .cleaning import cleaning as cleaning
from .images import Images as Images
from .quadratic import Instance as Instance
from .quadratic import quadratic as quadratic
from .softmax import best_coefficients as best_coefficients
from .traffic import two_edge_traffic as two_edge_traffic
