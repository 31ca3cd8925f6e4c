"""Ready problems with known answers, and what they are made of."""

from . import images, tntp
from .cleaning import cleaning
from .dro import draw_dro, dro
from .energy import draw_energy, energy
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

ENTRIES = {  # what `cobilevel gallery` lists: the function that makes an instance, and the one that draws its solution
    "quadratic": (quadratic, draw_quadratic),
    "two_edge_traffic": (two_edge_traffic, draw_two_edge_traffic),
    "meta_learning": (meta_learning, draw_meta_learning),
    "dro": (dro, draw_dro),
    "newsvendor": (newsvendor, draw_newsvendor),
    "instruments": (instruments, draw_instruments),
    "toll": (toll, draw_toll),
    "portfolio": (portfolio, draw_portfolio),
    "energy": (energy, draw_energy),
    "federated": (federated, draw_federated),
}
