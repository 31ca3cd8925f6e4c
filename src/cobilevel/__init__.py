"""Contextual bilevel optimization in JAX.

Each name is imported from its room when it is first asked for, so that nothing is loaded that a program does not use.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import direct as direct
    from . import gallery as gallery
    from .answer import Interrupted as Interrupted
    from .answer import Solution as Solution
    from .answer import load as load
    from .basis import (
        Additive as Additive,
    )
    from .basis import (
        BSpline as BSpline,
    )
    from .basis import (
        Categorical as Categorical,
    )
    from .basis import (
        Chebyshev as Chebyshev,
    )
    from .basis import (
        Components as Components,
    )
    from .basis import (
        Features as Features,
    )
    from .basis import (
        Fourier as Fourier,
    )
    from .basis import (
        HyperbolicCross as HyperbolicCross,
    )
    from .basis import (
        Interactions as Interactions,
    )
    from .basis import (
        KernelFeatures as KernelFeatures,
    )
    from .basis import (
        Legendre as Legendre,
    )
    from .basis import (
        Listed as Listed,
    )
    from .basis import (
        Monomial as Monomial,
    )
    from .basis import (
        Neural as Neural,
    )
    from .basis import (
        Orthonormal as Orthonormal,
    )
    from .basis import (
        Partition as Partition,
    )
    from .basis import (
        Piecewise as Piecewise,
    )
    from .basis import (
        Rotated as Rotated,
    )
    from .basis import (
        Snapshot as Snapshot,
    )
    from .basis import (
        Tensor as Tensor,
    )
    from .basis import (
        TotalDegree as TotalDegree,
    )
    from .basis import (
        Union as Union,
    )
    from .diagnosis import Diagnosis as Diagnosis
    from .diagnosis import diagnose as diagnose
    from .front_door import reduce as reduce
    from .front_door import solve as solve
    from .ground import keep_programs as keep_programs
    from .iteration import (
        Cosine as Cosine,
    )
    from .iteration import (
        PolynomialDecay as Polynomial,  # noqa: F401  its name before it was PolynomialDecay
    )
    from .iteration import (
        PolynomialDecay as PolynomialDecay,
    )
    from .iteration import (
        Result as Result,
    )
    from .judge import (
        Bootstrap as Bootstrap,
    )
    from .judge import (
        Certificate as Certificate,
    )
    from .judge import (
        Constants as Constants,
    )
    from .judge import (
        Estimate as Estimate,
    )
    from .judge import (
        Evaluation as Evaluation,
    )
    from .judge import (
        bootstrap as bootstrap,
    )
    from .judge import (
        certify as certify,
    )
    from .judge import (
        evaluate as evaluate,
    )
    from .problem import (
        Bounds as Bounds,
    )
    from .problem import (
        Box as Box,
    )
    from .problem import (
        Equalities as Equalities,
    )
    from .problem import (
        Finite as Finite,
    )
    from .problem import (
        Inequalities as Inequalities,
    )
    from .problem import (
        Interval as Interval,
    )
    from .problem import (
        Levels as Levels,
    )
    from .problem import (
        Mixed as Mixed,
    )
    from .problem import (
        Mixture as Mixture,
    )
    from .problem import (
        Periodic as Periodic,
    )
    from .problem import (
        Problem as Problem,
    )
    from .problem import (
        Product as Product,
    )
    from .problem import (
        Samples as Samples,
    )
    from .problem import (
        Simplex as Simplex,
    )
    from .problem import (
        Stream as Stream,
    )
    from .problem import (
        TruncatedNormal as TruncatedNormal,
    )
    from .problem import (
        Unbounded as Unbounded,
    )
    from .problem import (
        Uniform as Uniform,
    )
    from .problem import (
        domain_of as domain_of,
    )
    from .solvers import (
        BSA as BSA,
    )
    from .solvers import (
        F2SA as F2SA,
    )
    from .solvers import (
        HOAG as HOAG,
    )
    from .solvers import (
        MRBO as MRBO,
    )
    from .solvers import (
        RSVRB as RSVRB,
    )
    from .solvers import (
        SABA as SABA,
    )
    from .solvers import (
        SOBA as SOBA,
    )
    from .solvers import (
        SPABA as SPABA,
    )
    from .solvers import (
        STABLE as STABLE,
    )
    from .solvers import (
        SUSTAIN as SUSTAIN,
    )
    from .solvers import (
        TTSA as TTSA,
    )
    from .solvers import (
        VRBO as VRBO,
    )
    from .solvers import (
        AmIGO as AmIGO,
    )
    from .solvers import (
        FdeHBO as FdeHBO,
    )
    from .solvers import (
        Newton as Newton,
    )
    from .solvers import (
        StocBiO as StocBiO,
    )

__version__ = "1.0.0"

_ROOMS = {
    "answer": "Interrupted Solution load",
    "basis": "Additive BSpline Categorical Chebyshev Components Features Fourier HyperbolicCross Interactions "
    "KernelFeatures Legendre Listed Monomial Neural Orthonormal Partition Piecewise Rotated Snapshot Tensor "
    "TotalDegree Union",
    "diagnosis": "Diagnosis diagnose",
    "iteration": "Cosine PolynomialDecay Result",
    "judge": "Bootstrap Certificate Constants Estimate Evaluation bootstrap certify evaluate",
    "ground": "keep_programs",
    "problem": "Bounds Box Equalities Finite Inequalities Interval Levels Mixed Mixture Periodic Problem Product "
    "Samples Simplex Stream TruncatedNormal Unbounded Uniform domain_of",
    "front_door": "reduce solve",
    "solvers": "BSA F2SA HOAG MRBO RSVRB SABA SOBA SPABA STABLE SUSTAIN TTSA VRBO AmIGO FdeHBO Newton StocBiO",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}
_RENAMED = {"Polynomial": "PolynomialDecay"}  # old names, until 2.0

__all__ = [*_HOME, "direct", "gallery"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        now = _RENAMED[name]
        words = f"cobilevel.{name} is now cobilevel.{now}; the old name is removed in 2.0."
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        return __getattr__(now)
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    else:
        try:
            value = import_module(f".{name}", __name__)
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
