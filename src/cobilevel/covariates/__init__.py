"""Many covariates: along which coordinates and directions of the context a policy varies, from rough responses."""

from .directions_fit import Projected as Projected
from .directions_fit import degrees_up_to as degrees_up_to
from .directions_fit import fit_directions as fit_directions
from .directions_fit import refined as refined
from .directions_fit import tune_directions as tune_directions
from .kernel_fit import KernelMap as KernelMap
from .kernel_fit import KernelSettings as KernelSettings
from .kernel_fit import fit_kernel as fit_kernel
from .kernel_fit import refreshed as refreshed
from .kernel_fit import tune_kernel as tune_kernel
from .recipes import with_directions as with_directions
from .recipes import with_map as with_map
from .responses import Responses as Responses
from .responses import nested_errors as nested_errors
from .structure import FEWEST_DIMENSIONS as FEWEST_DIMENSIONS
from .structure import FewDirections as FewDirections
from .structure import Structure as Structure
from .structure import structure_of as structure_of
