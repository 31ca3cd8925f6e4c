"""``certify``: is this point stationary for the problem as stated, and is the basis rich enough? Measured."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import PyTree

from .basis import Orthonormal
from .checks import positive
from .data import Data, Product, Samples, Stream, levels, without_idle
from .domain import Finite
from .enrich import enrich
from .enriched import enriched_gap, reduced_gap
from .evaluate import losses
from .gap import GROUPS, Gap, exact_gap
from .intervals import Estimate, freedom_of, mean_estimate, norm_estimate
from .lower import DENSE_LIMIT, MISSING
from .problem import Problem, check, lower_depends_on_noise
from .reduction import contexts_of
from .solution import Solution, check_solution
from .store import as_key

_STREAM_ROWS = 4000
_NUMBERS = 2e8  # the most numbers held for derivatives by context
_WIDEST = 512  # the largest y whose Hessian is taken context by context
_SAMPLES_EACH = 8  # for each function of the richer basis
MODES = ("exact", "enriched", "held-out")


@dataclass(frozen=True)
class Constants:
    r"""What the corrected theorem needs to know: Lipschitz constants of ``f`` (`f0`), of its gradient (`f1`), of the
    gradient (`g1`) and the Hessian (`g2`) of ``g``, and the strong convexity `mu` of ``g`` in ``y``."""

    f0: float
    f1: float
    g1: float
    g2: float
    mu: float

    def __post_init__(self):
        positive("Constants: mu", self.mu)
        for name in ("f0", "f1", "g1", "g2"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"Constants: {name} must be a nonnegative number, got {getattr(self, name)!r}.")

    @property
    def policy(self) -> float:
        """``K``: how much the gradient can move for each unit of the policy's error."""
        f0, f1, g1, g2, mu = self.f0, self.f1, self.g1, self.g2, self.mu
        return f1 + g2 * f0 / mu + g2 * g1 * f0 / mu**2 + f1 * g1 / mu


@dataclass(frozen=True, eq=False)
class Certificate:
    """How good a solution is, measured on samples. Figures are numbers that carry ``.error`` and ``.interval``.

    - `gradient_norm`: of the contextual objective ``F`` at ``x``, without what active bounds block.
    - `reduced_gradient_norm`: of the reduced objective on the same samples.
    - `policy_error`: ``E|policy - y*|^2``.
    - `adjoint_error`, `sensitivity_error`: squared distances of adjoint and sensitivity to the span of the basis, in
      the norm of ``d22 G``; the square root of their product bounds what they add to the gap.
    - `hypergradient_gap`: ``|grad F - grad F_Phi|``; `parts`: the vectors it is the sum of.
    - `lower_loss`: the mean of ``g`` along the policy.
    - `mode`: "exact", "enriched" or "held-out", and `compared`: with what, in words.
    - `bound`: the corrected theorem's bound on the gradient norm, where constants were given.
    - `trouble`: what went wrong, empty where nothing did.
    """

    gradient_norm: Estimate
    reduced_gradient_norm: Estimate
    policy_error: Estimate | None
    adjoint_error: Estimate | None
    sensitivity_error: Estimate | None
    hypergradient_gap: Estimate | None
    lower_loss: Estimate
    gradient: PyTree
    parts: dict[str, PyTree]
    mode: str
    compared: str
    bound: float | None
    samples: int
    blocked: int
    trouble: str

    @property
    def stationary(self) -> bool:
        """Whether the gradient cannot be told from zero on these samples; not where it could not be measured."""
        return self.gradient_norm.interval[0] == 0 and bool(np.isfinite(self.gradient_norm.error))

    @property
    def blame(self) -> str:
        """Which part of the gap is the larger, in words."""
        if not self.parts:
            return "not measured"
        sizes = {name: float(np.linalg.norm(ravel_pytree(part)[0])) for name, part in self.parts.items()}
        total, scale = sum(sizes.values()), float(np.linalg.norm(ravel_pytree(self.gradient)[0]))
        if not np.isfinite(total):
            return "unknown"
        if total <= 1e-12 * (1 + scale):
            return "rounding"
        return ", ".join(f"{name} {100 * size / total:.0f}%" for name, size in sizes.items())

    def __repr__(self):
        lines = [
            f"Certificate({self.mode} mode, {self.samples} samples: compared with {self.compared})",
            f"  gradient of F          {self.gradient_norm!r}"
            + ("  not to be told from 0" if self.stationary else "")
            + (f"  ({self.blocked} coordinates blocked by bounds left out)" if self.blocked else ""),
            f"  gradient of F_Phi      {self.reduced_gradient_norm!r}",
        ]
        if self.hypergradient_gap is not None:
            lines.append(f"  their difference       {self.hypergradient_gap!r}  from {self.blame}")
        for name, value in (
            ("policy error, squared  ", self.policy_error),
            ("adjoint error, squared ", self.adjoint_error),
            ("sensitivity, squared   ", self.sensitivity_error),
            ("lower objective        ", self.lower_loss),
        ):
            lines += [] if value is None else [f"  {name}{value!r}"]
        lines += [] if self.bound is None else [f"  bound by the constants {self.bound:.3g}"]
        lines += [] if not self.trouble else [f"  trouble: {self.trouble}"]
        return "\n".join(lines)


def certify(
    problem: Problem,
    solution: Solution,
    samples: Data,
    mode: str | None = None,
    constants: Constants | None = None,
    draws: int = 256,
    key: Any = 0,
) -> Certificate:
    """Measures how good ``solution.x`` and its policy are for the contextual problem.

    **Arguments:**

    - `samples`: data to judge by; others than those it was solved from, or the figures flatter.
    - `mode`: by default the first that is possible. ``"exact"``: true lower-level solutions at each context (no noise
      in the lower level, ``Product`` data, a ``Finite`` domain, or ``problem.conditional``). ``"enriched"``: joint
      samples only, compared with a basis of about twice the functions; it sees what that basis can express and no more.
      ``"held-out"``: the reduced problem and the lower objective on these samples, nothing else.
    - `constants`: Lipschitz constants, to evaluate the corrected theorem's bound.
    - `draws`, `key`: draws of noise at a context where ``problem.conditional`` is used, and their seed.
    """
    check(problem, samples)
    check_solution(problem, solution)
    samples = without_idle(samples)
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, or None to have it chosen; got {mode!r}.")
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves((solution.x, solution.W))):
        raise ValueError("solution holds NaN or infinity, so there is nothing to certify; see solution.result.")
    base = as_key(key)
    above, below = levels(samples)
    drawn = [
        level.draw(jax.random.fold_in(base, k), _STREAM_ROWS) if isinstance(level, Stream) else level
        for k, level in enumerate((above, above if above is below else below))
    ]
    above, below = (drawn[0], drawn[0]) if above is below else drawn
    richer = _richer(problem, solution, above, below)
    possible = _possible(problem, solution, above, below, richer)
    mode = next(name for name in MODES if not possible[name]) if mode is None else mode
    if possible[mode]:
        raise ValueError(f'mode="{mode}" is not possible: {possible[mode]}')
    if mode == "exact":
        found = exact_gap(problem, solution, above, below, draws, base, richer)
        compared = "exact lower-level solutions at each context"
    elif mode == "enriched" and isinstance(above, Samples) and isinstance(below, Samples) and richer is not None:
        found = enriched_gap(problem, solution, above, below, richer)
        compared = f"{richer!r}"
    else:
        found = reduced_gap(problem, solution, above, below)
        compared = "nothing beyond this basis: the gradient is the reduced problem's"
    return _certificate(problem, solution, above, below, found, mode, compared, constants)


def _richer(problem, solution, above, below):
    """A richer basis that the samples bear, or None."""
    contexts = contexts_of(below)
    distinct = len(np.unique(np.asarray(contexts.xi), axis=0))
    noisy = lower_depends_on_noise(problem, below) and isinstance(below, Samples)
    size = sum(leaf.size for leaf in jax.tree.leaves(problem.y0))
    borne = int(1 + freedom_of(np.asarray(contexts.mean_one_weights()) / len(contexts)))
    most = min(distinct // 2, borne // _SAMPLES_EACH if noisy else distinct, DENSE_LIMIT // size)
    richer = enrich(solution.basis.basis, problem.domain, solution.basis.size, most)
    return richer if richer is None or isinstance(richer, Orthonormal) else Orthonormal(richer)


def _possible(problem, solution, above, below, richer) -> dict[str, str]:
    """For each mode why it is not possible, empty where it is."""
    size, width = (sum(leaf.size for leaf in jax.tree.leaves(part)) for part in (problem.y0, problem.x0))
    contexts = len(above.context_rule() if isinstance(above, Product) else above)
    dense = solution.basis.size * size <= DENSE_LIMIT
    known = (
        not lower_depends_on_noise(problem, below)
        or isinstance(below, Product)
        or isinstance(problem.domain, Finite)
        or problem.conditional is not None
    )
    large = f"N d_y = {solution.basis.size * size} coefficients are more than {DENSE_LIMIT}."
    exact = "" if known else f"{MISSING[0].upper()}{MISSING[1:]}"
    if size > _WIDEST or contexts * size * (size + width) > _NUMBERS:
        exact = exact or f"second derivatives of {size} x {size + width} at {contexts} contexts do not fit."
    exact = exact or ("" if dense else large)
    joint = isinstance(above, Samples) and isinstance(below, Samples)
    enriched = "" if dense else large
    enriched = enriched or ("" if joint else "it compares on joint samples, and these are Product data.")
    enriched = enriched or ("" if richer is not None else "the samples bear no richer basis, or there is none.")
    return {"exact": exact, "enriched": enriched, "held-out": ""}


def _certificate(problem, solution, above, below, found: Gap, mode, compared, constants) -> Certificate:
    x, unravel = ravel_pytree(solution.x)
    lo, hi = (np.asarray(ravel_pytree(side)[0]) for side in problem.x_bounds)
    gradient, x = found.gradient[0], np.asarray(x)
    free = ~(((x <= lo) & (gradient > 0)) | ((x >= hi) & (gradient < 0)) | (lo == hi))
    rounding = (np.finfo(x.dtype).eps ** (2 / 3) * found.scale) ** 2 / max(len(x), 1) * np.eye(len(x))
    norm = lambda pair: norm_estimate(pair[0][free], (pair[1] + rounding)[np.ix_(free, free)], found.freedom)
    gap = None if found.difference is None else norm_estimate(*found.difference, GROUPS - 1, cautious=True)
    bound = None
    if constants is not None and found.adjoint_error is not None and found.sensitivity_error is not None:
        spread = float(np.sqrt(found.adjoint_error.interval[1] * found.sensitivity_error.interval[1]))
        bound = float(np.linalg.norm(found.reduced[0][free])) + constants.policy * found.distance + spread
    unsure = (
        "the gradient, or its noise, could not be measured: too few samples, or NaN in upper or lower at the policy"
    )
    rows = below.context_rule() if isinstance(below, Product) else below
    values = losses(problem.lower, solution.x, solution.policy(rows.xi), rows.xi, below.eta, isinstance(below, Product))
    return Certificate(
        gradient_norm=norm(found.gradient),
        reduced_gradient_norm=norm(found.reduced),
        policy_error=found.policy_error,
        adjoint_error=found.adjoint_error,
        sensitivity_error=found.sensitivity_error,
        hypergradient_gap=gap,
        lower_loss=mean_estimate(values, np.asarray(rows.mean_one_weights(), float) / len(rows)),
        gradient=unravel(jnp.asarray(gradient, x.dtype)),
        parts={name: unravel(jnp.asarray(part, x.dtype)) for name, part in found.parts.items()},
        mode=mode,
        compared=compared,
        bound=bound,
        samples=above.eta_rows if isinstance(above, Product) else len(above),
        blocked=int(np.sum(~free)),
        trouble=found.trouble or ("" if np.all(np.isfinite(found.gradient[1])) else unsure),
    )
