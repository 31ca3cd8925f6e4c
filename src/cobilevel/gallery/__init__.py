"""Ready problems with known answers, and what they are made of."""

from . import images
from .cleaning import cleaning
from .images import Images
from .quadratic import Instance, quadratic
from .softmax import best_coefficients, entropies
from .traffic import two_edge_traffic
