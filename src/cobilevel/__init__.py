"""Contextual bilevel optimization in JAX."""

from . import gallery as gallery
from .basis import BSpline as BSpline
from .basis import Categorical as Categorical
from .basis import Chebyshev as Chebyshev
from .basis import Features as Features
from .basis import Fourier as Fourier
from .basis import Legendre as Legendre
from .basis import Monomial as Monomial
from .basis import Orthonormal as Orthonormal
from .basis import Partition as Partition
from .data import Levels as Levels
from .data import Product as Product
from .data import Samples as Samples
from .data import Stream as Stream
from .domain import Box as Box
from .domain import Finite as Finite
from .domain import Interval as Interval
from .domain import Mixture as Mixture
from .domain import TruncatedNormal as TruncatedNormal
from .domain import Uniform as Uniform
from .evaluate import Evaluation as Evaluation
from .evaluate import evaluate as evaluate
from .indices import HyperbolicCross as HyperbolicCross
from .indices import Tensor as Tensor
from .indices import TotalDegree as TotalDegree
from .problem import Problem as Problem
from .reduction import reduce as reduce
from .solution import Solution as Solution
from .solution import load as load
from .solve import solve as solve
from .solvers import Newton as Newton
from .solvers import StocBiO as StocBiO

__version__ = "0.1.0"
