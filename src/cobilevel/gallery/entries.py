"""What ``cobilevel gallery`` solves, by name."""

from collections.abc import Callable
from typing import Any, NamedTuple

from .cleaning import cleaning, draw_cleaning
from .dro import draw_dro, dro
from .energy import draw_energy, energy
from .federated import draw_federated, federated
from .instruments import draw_instruments, instruments
from .meta_learning import draw_meta_learning, meta_learning
from .network import draw_network, grid, network
from .newsvendor import draw_newsvendor, newsvendor
from .portfolio import draw_portfolio, portfolio
from .quadratic import Instance, draw_quadratic, quadratic
from .toll import draw_toll, toll
from .traffic import draw_two_edge_traffic, two_edge_traffic


class Entry(NamedTuple):
    """What ``cobilevel gallery`` solves: what makes an instance, of a seed and of `sizes`; what draws its solution."""

    make: Callable[..., Instance]
    draw: Callable[[Instance, Any], Any]
    sizes: Callable[[], dict[str, Any]] = dict


ENTRIES = {
    "quadratic": Entry(quadratic, draw_quadratic),
    "two_edge_traffic": Entry(two_edge_traffic, draw_two_edge_traffic),
    "meta_learning": Entry(meta_learning, draw_meta_learning),
    "dro": Entry(dro, draw_dro),
    "newsvendor": Entry(newsvendor, draw_newsvendor),
    "instruments": Entry(instruments, draw_instruments),
    "toll": Entry(toll, draw_toll),
    "portfolio": Entry(portfolio, draw_portfolio),
    "energy": Entry(energy, draw_energy),
    "federated": Entry(federated, draw_federated),
    "network": Entry(network, draw_network, lambda: {"roads": grid(2, 3, seed=2), "train": 300}),
    "cleaning": Entry(cleaning, draw_cleaning, lambda: {"train": 400, "validation": 300}),
}
