"""diagnosis.advice."""

from dataclasses import replace
from math import comb
from typing import Any

import numpy as np
from jaxtyping import Float

from ..basis.base import Basis
from ..basis.families import BSpline, Chebyshev, Partition, Polynomial, ProductBasis
from ..basis.given import Categorical
from ..basis.index_sets import Listed, Tensor, TotalDegree
from ..basis.whitening import Orthonormal
from ..problem.domain import Box, Domain, Interval
from .decay import Decay
from .diagnosis import Advice, Diagnosis
from .policy_expansion import CONTEXTS_EACH, SAMPLES_EACH

_DEPENDENT = 1e-4  # ratio of the extreme eigenvalues of E[Phi Phi^T] below which features count as nearly dependent


_POOR, _GOOD = 1e-2, 1e-3  # a misfit of the policy that is worth more functions, and what these should reach


def _covered_share(u: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    return (u.max(axis=0) - u.min(axis=0)) / 2


def _filled(domain: Domain, u: Float[np.ndarray, "n d"]) -> Domain:
    """The box that contexts fill, a little widened."""
    lo, hi = u.min(axis=0), u.max(axis=0)
    slack = 0.01 * (hi - lo) + 1e-6
    lo, hi = np.maximum(lo - slack, -1), np.minimum(hi + slack, 1)
    low, high = (np.asarray(end, dtype=float) for end in domain.bounds)
    lo, hi = low + (high - low) * (lo + 1) / 2, low + (high - low) * (hi + 1) / 2
    return Box(lo, hi) if domain.shape else Interval(lo[0], hi[0])


def _smaller(basis: Basis, domain: Domain, most: int) -> Basis:
    """The largest basis of the same kind with at most that many functions; Chebyshev where there is no such kind."""
    inner = basis.basis if isinstance(basis, Orthonormal) else basis
    wrap = Orthonormal if isinstance(basis, Orthonormal) or not isinstance(inner, ProductBasis) else lambda part: part
    if not isinstance(inner, ProductBasis) or isinstance(inner.index, Listed):
        inner = Chebyshev(1, index=Tensor() if domain.dimension == 1 else TotalDegree())
    n = 1
    while len(inner.index.table(n + 1, domain.dimension)) <= most:
        n += 1
    return wrap(replace(inner, n=n))


def _size(basis: Basis, domain: Domain) -> int:
    """How many functions a basis made by ``_smaller`` has."""
    inner: Any = basis.basis if isinstance(basis, Orthonormal) else basis
    return len(inner.index.table(inner.n, domain.dimension))


def _advise(found: Diagnosis, domain: Domain, u: np.ndarray, spectrum: np.ndarray, noisy: bool) -> tuple[Advice, ...]:
    basis, decay, functions = found.basis, found.decay, found.functions
    inner = basis.basis if isinstance(basis, Orthonormal) else basis
    whitened = basis if isinstance(basis, Orthonormal) else Orthonormal(basis)
    each, unit = (SAMPLES_EACH, "samples") if noisy else (CONTEXTS_EACH, "distinct contexts")
    supported = max(1, int(min(found.per_function, 1e6) * functions / each))
    said: list[Advice] = []
    if found.mu < 0:
        what = f"the lower level is not convex at the fitted policy (least curvature {found.mu:.2g})"
        said.append(Advice(what, "add a multiple of |y|^2 to it, or look at another x"))
    if "coverage" in found.conditions and found.conditions["coverage"].holds is False:
        box, share = _filled(domain, u), ", ".join(f"{part:.0%}" for part in _covered_share(u))
        remedy = f"give the problem the domain {box!r}, or else use {whitened!r}"
        said.append(Advice(f"contexts fill only {share} of the domain", remedy, basis=whitened, domain=box))
    if found.per_function < each:
        less = None if isinstance(inner, Categorical) or functions == 1 else _smaller(basis, domain, supported)
        fewer = f"use at most N = {_size(less, domain)}, {less!r}, or " if less is not None else "take "
        what = f"{found.per_function:.2g} {unit} for each function"
        remedy = f"expect overfitting; {fewer}{each * functions} {unit}"
        said.append(Advice(what, remedy, basis=less, samples=each * functions))
    dependent = spectrum[-1] ** 2 < _DEPENDENT * spectrum[0] ** 2
    if dependent and not isinstance(basis, Orthonormal | Categorical):
        cut = f", {found.rank} of {functions} told apart" if found.rank < functions else ""
        what = f"the features are nearly dependent (m = {found.m_Phi:.1g}{cut})"
        said.append(Advice(what, f"use {whitened!r}: the same functions, mixed so that they are not", basis=whitened))
    if decay is not None:
        said += _about_decay(found, decay, domain, supported, noisy)
    return tuple(said)


def _about_decay(found: Diagnosis, decay: Decay, domain: Domain, supported: int, noisy: bool) -> list[Advice]:
    """What the coefficients say about the basis: too small, too large, the wrong kind, or in too many coordinates."""
    basis, d = found.basis, domain.dimension
    inner = basis.basis if isinstance(basis, Orthonormal) else basis
    needed, beyond = comb(decay.length - 1 + d, d), decay.tail(found.functions) / max(decay.size, 1e-300)
    poor = found.misfit is not None and found.misfit > _POOR and (not noisy or (d == 1 and beyond > _POOR / 2))
    if decay.kinks and (poor or not isinstance(inner, BSpline | Partition)):
        kink, n = decay.kinks[0], max(4, min(48, supported))
        local = BSpline(n, degree=3 if kink.power else 1)
        name = "a kink" if kink.power else "a jump"
        remedy = f"polynomials converge slowly; use {local!r}, or more cells there"
        has = "seems to have" if found.misfit is None else "has"  # in noise, a sharp bend looks the same
        return [Advice(f"the policy {has} {name} near xi = {kink.location:.3g}", remedy, basis=local)]
    said = []
    idle = [j for j, (share, error) in enumerate(found.spread) if share <= max(1.5 * error, 1e-3)]
    if 0 < len(idle) < d and isinstance(inner, ProductBasis):
        rows = [row for row in inner.index.table(inner.n, d) if not any(row[j] for j in idle)]
        if len(rows) < found.functions:
            less = replace(inner, index=Listed(rows))
            less = Orthonormal(less) if isinstance(basis, Orthonormal) else less
            what = f"the policy does not vary with coordinate {', '.join(map(str, idle))} of the context"
            said.append(Advice(what, f"{len(rows)} functions of the others do: {less!r}", basis=less))
    if (not isinstance(inner, Polynomial) and not poor) or decay.kind == "unresolved":
        return said
    wanted = min(supported, decay.predict(_GOOD) if poor else needed)
    fit, level = found.misfit is None, "rounding" if found.misfit is not None else "noise"
    if (poor or (noisy and fit and decay.resolved)) and wanted > found.functions:
        more = Orthonormal(_smaller(Chebyshev(1, index=Tensor() if d == 1 else TotalDegree()), domain, wanted))
        what = f"{needed} coefficients stand out of the noise, and the basis has {found.functions}"
        what = f"{found.functions} functions leave {found.misfit:.1%} of the policy" if poor else what
        said.append(Advice(what, f"use {more!r}", basis=more))
    large = found.functions > 1.25 * needed + 2
    if large and isinstance(inner, Polynomial) and decay.resolved and needed < supported:
        less = _smaller(basis, domain, needed) if d == 1 else Chebyshev(decay.length, index=TotalDegree())
        what = f"coefficients beyond {needed} are {level}, and the basis has {found.functions}"
        said.append(Advice(what, f"{less!r} will do", basis=less))
    return said
