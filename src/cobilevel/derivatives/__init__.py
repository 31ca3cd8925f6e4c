"""What is differentiated: oracles with their cost, the hypergradient with its signs, and its linear system."""

from . import oracles as oracles
from .expansion_rows import ExpansionRows as ExpansionRows
from .expansion_rows import expansion_rows as expansion_rows
from .expansion_rows import noise_reach as noise_reach
from .hypergradient import Directions as Directions
from .hypergradient import directions as directions
from .hypergradient import hypergradient as hypergradient
from .hypergradient import linear_direction as linear_direction
from .hypergradient import outer_direction as outer_direction
from .hypergradient import sensitivity as sensitivity
from .hypergradient import sensitivity_form as sensitivity_form
from .ledger import Ledger as Ledger
from .ledger import added as added
from .linear_systems import ConjugateGradient as ConjugateGradient
from .linear_systems import Direct as Direct
from .linear_systems import Draw as Draw
from .linear_systems import Factored as Factored
from .linear_systems import Neumann as Neumann
from .linear_systems import conjugate_gradient as conjugate_gradient
from .linear_systems import positive_solve as positive_solve
from .pointwise import hessian_product as hessian_product
from .pointwise import local_model as local_model
from .pointwise import lower_derivatives as lower_derivatives
from .pointwise import lower_slopes as lower_slopes
from .pointwise import upper_derivatives as upper_derivatives
from .pointwise import value_and_slope as value_and_slope
