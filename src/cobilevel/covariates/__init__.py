"""Many covariates: along which coordinates and directions of the context a policy varies, from rough fits."""

from .directions_fit import Projected as Projected
from .directions_fit import degrees_up_to as degrees_up_to
from .directions_fit import fit_directions as fit_directions
from .directions_fit import refined as refined
from .directions_fit import tune_directions as tune_directions
from .fits import CLEARLY as CLEARLY
from .fits import MOST_COEFFICIENTS as MOST_COEFFICIENTS
from .fits import MOST_FUNCTIONS as MOST_FUNCTIONS
from .fits import SETTLED as SETTLED
from .fits import Fits as Fits
from .fits import Residuals as Residuals
from .fits import Responses as Responses
from .fits import decisions_near as decisions_near
from .fits import nested_errors as nested_errors
from .fits import orthonormalising as orthonormalising
from .kernel_fit import KernelMap as KernelMap
from .kernel_fit import KernelSettings as KernelSettings
from .kernel_fit import fit_kernel as fit_kernel
from .kernel_fit import refreshed as refreshed
from .kernel_fit import tune_kernel as tune_kernel
from .structure import COUNTS as COUNTS
from .structure import FEWEST_DIMENSIONS as FEWEST_DIMENSIONS
from .structure import Structure as Structure
from .structure import additive_members as additive_members
from .structure import structure_of as structure_of
