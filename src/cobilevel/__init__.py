"""Contextual bilevel optimization in JAX.

Each name is imported from its room when it is first asked for, so that nothing is loaded that a program does not use.
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import direct as direct, gallery as gallery
    from .answer import Interrupted as Interrupted, Solution as Solution, load as load
    from .basis import (
        Additive as Additive,
        BSpline as BSpline,
        Categorical as Categorical,
        Chebyshev as Chebyshev,
        Components as Components,
        Features as Features,
        Fourier as Fourier,
        HyperbolicCross as HyperbolicCross,
        Interactions as Interactions,
        KernelFeatures as KernelFeatures,
        Legendre as Legendre,
        Listed as Listed,
        Monomial as Monomial,
        Neural as Neural,
        Orthonormal as Orthonormal,
        Partition as Partition,
        Piecewise as Piecewise,
        Rotated as Rotated,
        Snapshot as Snapshot,
        Tensor as Tensor,
        TotalDegree as TotalDegree,
        Union as Union,
    )
    from .diagnosis import Diagnosis as Diagnosis, diagnose as diagnose
    from .front_door import reduce as reduce, solve as solve
    from .ground import keep_programs as keep_programs
    from .iteration import (
        Cosine as Cosine,
        PolynomialDecay as Polynomial,  # noqa: F401  its name before it was PolynomialDecay
        PolynomialDecay as PolynomialDecay,
        Result as Result,
    )
    from .judge import (
        Bootstrap as Bootstrap,
        Certificate as Certificate,
        Constants as Constants,
        Estimate as Estimate,
        Evaluation as Evaluation,
        bootstrap as bootstrap,
        certify as certify,
        evaluate as evaluate,
    )
    from .problem import (
        Bounds as Bounds,
        Box as Box,
        Equalities as Equalities,
        Finite as Finite,
        Inequalities as Inequalities,
        Interval as Interval,
        Levels as Levels,
        Mixed as Mixed,
        Mixture as Mixture,
        Periodic as Periodic,
        Problem as Problem,
        Product as Product,
        Samples as Samples,
        Simplex as Simplex,
        Stream as Stream,
        TruncatedNormal as TruncatedNormal,
        Unbounded as Unbounded,
        Uniform as Uniform,
        domain_of as domain_of,
    )
    from .solvers import (
        BSA as BSA,
        F2SA as F2SA,
        HOAG as HOAG,
        MRBO as MRBO,
        RSVRB as RSVRB,
        SABA as SABA,
        SOBA as SOBA,
        SPABA as SPABA,
        STABLE as STABLE,
        SUSTAIN as SUSTAIN,
        TTSA as TTSA,
        VRBO as VRBO,
        AmIGO as AmIGO,
        FdeHBO as FdeHBO,
        Newton as Newton,
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
