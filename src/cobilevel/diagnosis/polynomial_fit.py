"""The reduced lower level minimised over as many polynomials as the samples support, with standard errors."""

from dataclasses import dataclass, replace

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ..basis import Chebyshev, Tensor, TotalDegree
from ..covariates import Responses
from ..derivatives import Ledger, oracles
from ..lower import lower_minimiser
from ..problem import Box, Interval, Look, Problem, Study
from ..programs import program
from ..reduction import Batch, Bilevel, batch_of, reduce_study
from .curvature import lower_hessian, orthonormal_batch, rotated

_MOST_FUNCTIONS = 64  # on an interval: kinks are seen with fewer, and smooth policies need fewer
_MOST_FIT_COEFFICIENTS = 600  # functions times components of y


@dataclass(frozen=True)
class PolynomialFit:
    r"""Coefficients in polynomials orthonormal over the observed contexts, degree by degree.

    So that each has its own noise: those of Chebyshev polynomials share theirs, and rise and fall together.

    - `study`: the problem on the box that its contexts fill; `u`: these on the reference cube, with `weight`.
    - `table`: the multi-index of each function; `r`: the way from Chebyshev polynomials to them.
    - `coefficients`, and `moves`: how each of the `groups` of samples moves them, scaled so that squares add up to
      the variance, by the sandwich formula $H^{-1} \mathrm{cov}(\partial_2 g\, \Phi) H^{-1} / n$.
    - `values`, `steps`: the policy at the samples, and a Newton step ``d22 g^-1 d2 g`` of each sample from there;
      `curvature`: the mean of ``d22 g``.
    """

    study: Study
    u: Float[np.ndarray, "n d"]
    weight: Float[np.ndarray, " n"]
    table: Int[np.ndarray, "N d"]
    r: Float[np.ndarray, "N N"]
    coefficients: Float[np.ndarray, "N dy"]
    moves: Float[np.ndarray, "groups N dy"]
    values: Float[np.ndarray, "n dy"]
    steps: Float[np.ndarray, "n dy"]
    curvature: Float[np.ndarray, "dy dy"]

    @property
    def groups(self) -> int:
        """The number of independent samples: contexts, where each meets the same data."""
        return len(self.moves)

    @property
    def rms(self) -> float:
        """The root mean square of the policy."""
        return float(np.sqrt(self.weight @ np.sum(self.values**2, axis=1) / len(self.weight)))

    def errors(self) -> Float[np.ndarray, "N dy"]:
        """The standard errors of the coefficients."""
        return np.sqrt(np.sum(self.moves**2, axis=0))

    def response(self) -> Float[np.ndarray, "n dy"]:
        """What each sample alone asks for: the policy and a Newton step."""
        return self.values - self.steps

    def responses(self) -> Responses:
        """The same in the units of the lower objective."""
        return Responses.of(self.u, self.response(), self.curvature, self.weight / self.weight.sum())

    def in_chebyshev(self, low: np.ndarray) -> tuple[Float[np.ndarray, "K dy"], Float[np.ndarray, "groups K dy"]]:
        """Coefficients and moves of some of the functions, the first ones, in Chebyshev polynomials."""
        back = np.linalg.pinv(self.r[np.ix_(low, low)])
        return back @ self.coefficients[low], np.einsum("kl,nla->nka", back, self.moves[:, low])


def _covered(problem: Problem, xi: Array) -> Problem:
    """The problem on the box that the contexts fill: polynomials mean little where there are none."""
    table = np.asarray(problem.domain.coordinates(xi), dtype=float)
    lo, hi = table.min(axis=0), table.max(axis=0)
    if not np.all(lo < hi):
        return problem
    box = Box(lo, hi) if problem.domain.shape else Interval(lo[0], hi[0])
    return eqx.tree_at(lambda p: p.domain, problem, box)


def _supported_polynomials(look: Look, d: int, d_y: int) -> tuple[Chebyshev, Int[np.ndarray, "N d"]]:
    """As many polynomials as the contexts support, with or without noise: their errors are to be measured too."""
    contexts = look.samples.rows(slice(None, None, look.together))
    most = max(1, min(contexts.supported(noisy=True), _MOST_FIT_COEFFICIENTS // d_y))
    most = min(most, _MOST_FUNCTIONS) if d == 1 else most
    index = Tensor() if d == 1 else TotalDegree()
    n = next(n for n in range(1, most + 2) if n > most or (index.count(n + 1, d) or 0) > most)
    return Chebyshev(n, index=index), index.table(n, d)


@program
def _lower_slopes(reduced: Bilevel, x: PyTree, W: PyTree, batch: Batch) -> Float[Array, "n dy"]:
    """The gradient of ``g`` in ``y``, sample by sample."""
    (slopes, _, _), _ = oracles.lower_rows(reduced, x, W, W, batch, Ledger.page())
    return oracles.flatten(slopes)[0].reshape(len(batch), -1)


def fit_polynomials(study: Study, x: PyTree, look: Look) -> PolynomialFit:
    """The fit to a look at the data."""
    study = replace(study.on(look.samples), problem=_covered(study.problem, look.samples.xi))
    domain, d_y = study.problem.domain, study.problem.sizes[1]
    basis, table = _supported_polynomials(look, domain.dimension, d_y)
    reduced = reduce_study(study, basis)
    batch, r = orthonormal_batch(batch_of(reduced.basis, look.samples))
    turned = replace(reduced, W0=rotated(r, reduced.W0)).with_pools(batch, batch).ordinary()
    W = lower_minimiser(turned, x, turned.W0, study.eps**0.75)
    hessian = np.asarray(lower_hessian(turned, x, W, batch), dtype=float)
    slopes = np.asarray(_lower_slopes(turned, x, W, batch), dtype=float)
    phi, weight = (np.asarray(part, dtype=float) for part in (batch.features, batch.weight))

    groups = len(look.samples) // look.together
    scores = weight[:, None, None] * phi[:, :, None] * slopes[:, None, :]
    scores = scores.reshape(groups, look.together, -1).mean(axis=1)
    moves = np.linalg.lstsq(hessian, scores.T, rcond=None)[0].T / np.sqrt(groups * max(groups - len(table), 1))
    coefficients = np.asarray(oracles.flatten(W)[0], dtype=float).reshape(-1, d_y)
    return PolynomialFit(
        study=study,
        u=np.asarray(domain.reference(look.samples.xi), dtype=float),
        weight=weight,
        table=table,
        r=r,
        coefficients=coefficients,
        moves=moves.reshape(groups, -1, d_y),
        values=phi @ coefficients,
        curvature=hessian[:d_y, :d_y],
        steps=np.linalg.lstsq(hessian[:d_y, :d_y], slopes.T, rcond=None)[0].T,  # the first function is 1: E[d22 g]
    )
