"""Ready problems with known answers, and what they are made of."""

from . import images, tntp
from .cleaning import cleaning
from .images import Images
from .network import draw_roads, grid, network, write_table
from .quadratic import Instance, quadratic
from .softmax import best_coefficients, entropies
from .traffic import two_edge_traffic
