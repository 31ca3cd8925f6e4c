r"""Whether the functions of the context agree on ``x``: Hansen's test of over-identification.

Where the policy is a conditional mean, ``f`` compares it with noisy outcomes and has no slope of its own along ``x``, a
single ``x`` is asked to bring $E[\partial_2 f \mid \xi]$ to zero, as two-stage least squares does with the moments of
its instruments. With more functions than coordinates, it can do so for all of them only where they agree. Other
policies (regularised ones, those of an adversary) leave slopes along ``y`` at the best ``x``, and nothing is wrong.
"""

import numpy as np
from scipy import special

from ..basis import OneHot
from ..derivatives import galerkin
from .around import Around
from .galerkin import AGREE, MOST_NUMBERS
from .neighbours import features_of
from .noise import mean_error, scores
from .uncertainty import LEVEL


def disagreement(around: Around) -> str:
    r"""That no ``x`` suits all functions of the basis, in words; empty where noise explains what is left.

    The moments are $c = E[\Phi\, \partial_2 f]$ at the policy. Sample $i$ moves them through ``f`` and through the
    policy, by $\Phi_i \partial_2 f_i - B H^{-1} \Phi_i \partial_2 g_i$, with $B$ and $H$ the curvatures of ``f`` and
    ``g`` over the coefficients. Of $c$, what a move of ``x`` can bring about is projected out (Kleibergen's form, in
    which the moves do not follow the noise of the moments).
    """
    point, terms, dx, count = around.point, around.terms, len(around.x), around.point.W.size
    bends = terms.curvature  # of g along y: the same in all rows where the policy is a mean
    averages = np.ptp(bends, axis=(0, 1)).max() <= np.sqrt(around.study.eps) * np.abs(bends).max()
    if not (averages and around.study.upper_noise and np.any(terms.bend)):  # f compares: it curves along the policy
        return ""
    phi, shares = features_of(around), around.study.lower.contexts().shares()
    own = around.galerkin.expansions.upper_rows(around.x, point.W).d1
    trades = np.abs(shares @ own) > AGREE * mean_error(own, shares)
    if trades.any() or not dx < count < len(shares) or 3 * len(shares) * count > MOST_NUMBERS:
        return ""
    phi = phi @ np.eye(len(point.W)) if isinstance(phi, OneHot) else phi
    slopes = [
        np.einsum("nab,nb->na", A, phi @ one.adjoint) - alpha
        for one, A, alpha in zip(around.points, terms.curvature, terms.alpha, strict=True)
    ]
    moments = np.stack([(phi.T @ (shares[:, None] * slope)).ravel() for slope in slopes])
    inverse = np.linalg.pinv(galerkin(phi, terms.curvature[0] * shares[:, None, None]), hermitian=True)

    def rows_at(k: int) -> np.ndarray:
        bend = galerkin(phi, terms.bend[k] * shares[:, None, None])
        return (scores(phi, slopes[k]) - scores(phi, terms.r[k]) @ (inverse @ bend)) * shares[:, None]

    rows = rows_at(0)
    values, vectors = np.linalg.eigh(rows.T @ rows)  # their mean is zero where they agree
    seen = values > np.sqrt(around.study.eps) * values[-1]
    white = (vectors[:, seen] / np.sqrt(values[seen])).T
    moves = around.slope(moments)
    for j in range(dx):  # what they share with the moments by noise alone is no move
        change = (rows_at(1 + j) - rows_at(1 + dx + j)) / (1 + around.back[j])
        moves[j] -= (change.T @ rows) @ white.T @ white @ moments[0]
    moves = white @ (moves / around.lengths[:, None]).T
    left = white @ moments[0]
    q, triangle = np.linalg.qr(moves)
    degrees = len(left) - dx
    if degrees <= 0 or np.linalg.matrix_rank(triangle) < dx:
        return ""
    size = float(np.sum((left - q @ (q.T @ left)) ** 2))
    chance = float(special.chdtrc(degrees, size))
    if chance >= 1 - LEVEL:
        return ""
    freedom = f"{degrees} degree{'s'[: degrees > 1]} of freedom"
    return (
        f"The functions of the context do not agree on x (Hansen's J = {size:.3g} on {freedom}, p = {chance:.1g}). "
        "Some are not valid instruments, or the effect is not the same for all: another basis may give another x."
    )
