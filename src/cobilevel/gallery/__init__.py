"""Ready problems with known answers, and what they are made of."""

from . import images, tntp
from .cleaning import cleaning, draw_cleaning
from .dro import draw_dro, dro
from .energy import draw_energy, energy
from .entries import ENTRIES
from .federated import draw_federated, federated
from .images import Images
from .instruments import draw_instruments, instruments
from .meta_learning import draw_meta_learning, meta_learning
from .network import draw_network, draw_roads, grid, network, write_table
from .newsvendor import draw_newsvendor, newsvendor
from .portfolio import draw_portfolio, portfolio
from .quadratic import Instance, draw_quadratic, quadratic
from .softmax import best_coefficients, entropies
from .toll import draw_toll, toll
from .traffic import draw_two_edge_traffic, two_edge_traffic
