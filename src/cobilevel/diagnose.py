"""``diagnose``: what stands between a basis, the data and a good policy, and what to do about it.

Everything is measured before anything is solved: how well the observed contexts tell the functions apart, how the
reduced lower level is curved, and how fast the coefficients of the policy fall, at one ``x``.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .basis import Basis, Categorical, Orthonormal
from .data import Data, Levels, Product, Samples, Stream, levels
from .decay import Decay
from .domain import Box, Distribution, Domain, Finite, Interval
from .expansion import CONTEXTS_EACH, ROWS, SAMPLES_EACH, batch_of, curvatures, expand, fitted, look_at, restore
from .families import BSpline, Chebyshev, Partition, Polynomial, ProductBasis
from .indices import Listed, Tensor, TotalDegree
from .problem import Problem, check, lower_depends_on_noise, working_dtype
from .reduction import Reduced, Table, build

_SUP_NUMBERS = 4_000_000  # features evaluated in search of their supremum
_DEPENDENT = 1e-4  # ratio of the extreme eigenvalues of E[Phi Phi^T] below which features count as nearly dependent
_POOR, _GOOD = 1e-2, 1e-3  # a misfit of the policy that is worth more functions, and what these should reach
_CELLS, _CELL = 20, 25  # cells that the density of contexts is looked at in, and how many contexts each should hold


@dataclass(frozen=True)
class Advice:
    """What stands out and what to do; the fields after the words are the remedy itself, where there is one."""

    what: str
    remedy: str
    basis: Basis | None = None
    domain: Domain | None = None
    samples: int | None = None

    def __str__(self):
        return f"{self.what}: {self.remedy}"


@dataclass(frozen=True)
class Condition:
    """A condition of the theory: whether the data agree (``None``: they cannot tell), and what was seen."""

    holds: bool | None
    words: str


@dataclass(frozen=True, eq=False)
class Diagnosis:
    r"""What ``diagnose`` found.

    - `M_Phi`: $\max(1, \sup |\Phi|)$ over the domain; `m_Phi`: $\min(1, \lambda_{min} E[\Phi \Phi^T])$ over the
      observed contexts; `rank`: how many of the `functions` these tell apart; `distinct`: how many contexts there are.
    - `per_function`: samples for each function (distinct contexts, where the lower level has no noise).
    - `mu`, `L`: the smallest and the largest curvature of the reduced lower level at the fitted coefficients.
    - `decay`: how the coefficients of the policy fall, ``None`` where the domain is ``Finite``; `source`: whether that
      comes from exact lower-level solutions or from a fit to the samples; `spread`: in several dimensions, the share of
      the policy that varies with each coordinate of the context, and its error.
    - `misfit`: how far the fitted policy is from the exact one, relative root mean square, where that can be had.
    - `conditions`: those of the convergence theorem for Chebyshev bases, as far as data can check them.
    - `advice`: what to change; empty where nothing stands out.
    """

    basis: Basis
    M_Phi: float
    m_Phi: float  # noqa: N815
    rank: int
    functions: int
    distinct: int
    per_function: float
    mu: float
    L: float
    decay: Decay | None
    source: str
    spread: tuple[tuple[float, float], ...]
    misfit: float | None
    conditions: Mapping[str, Condition]
    advice: tuple[Advice, ...] = ()

    @property
    def condition(self) -> float:
        """Of the reduced lower level; also about how many inner steps it takes to relax."""
        return self.L / self.mu if self.mu > 0 else float("inf")

    @property
    def inner_step(self) -> float:
        """A safe step size for gradient descent on the lower level; it is stable below twice that."""
        return 1 / self.L if self.L > 0 else float("inf")

    def predict(self, accuracy: float) -> int:
        """How many functions a policy takes that is this accurate: root mean square, relative to the policy's size."""
        if self.decay is None:
            raise ValueError("predict needs the decay of the policy, which finite contexts do not have: Categorical().")
        return self.decay.predict(accuracy)

    def __repr__(self):
        held = {True: "yes", False: "no", None: "cannot tell"}
        lines = [
            f"Diagnosis of {self.basis!r}",
            f"  features    {self.functions} functions, {self.rank} told apart by {self.distinct} distinct contexts; "
            f"m = {self.m_Phi:.2g}, M = {self.M_Phi:.3g}",
            f"  samples     {self.per_function:.3g} for each function",
            f"  lower level curvature {self.mu:.2g} to {self.L:.2g}: steps of {self.inner_step:.2g} (stable below "
            f"{2 * self.inner_step:.2g}), {self.condition:.2g} of them to relax",
            f"  policy      {self.source if self.decay is None else f'{self.decay} ({self.source})'}",
        ]
        if self.misfit is not None:
            lines.append(f"  misfit      the fitted policy is {self.misfit:.2g} of its size off the exact one")
        lines += [f"  {name:<11} {held[state.holds]}: {state.words}" for name, state in self.conditions.items()]
        lines += [f"  advice      {line}" for line in self.advice] or ["  advice      nothing stands out."]
        return "\n".join(lines)

    def plot(self, path: str | Path | None = None) -> Any:
        """Coefficients by degree with the law they follow; written to `path` where one is given, else the figure."""
        if self.decay is None:
            raise ValueError("plot shows the decay of the policy, which finite contexts do not have.")
        import matplotlib

        if path is not None:
            matplotlib.use("Agg")
        import matplotlib.pyplot as plt
        from matplotlib.ticker import MaxNLocator

        decay = self.decay
        figure, axis = plt.subplots(figsize=(7, 4.4), layout="constrained")
        degrees, tiny = np.arange(len(decay.coefficients)), 0.03 * decay.plateau
        last = min(len(degrees), max(decay.length * 5 // 4 + 6, min(self.functions, 64) + 4))
        shown = np.maximum(decay.coefficients[:last], tiny if tiny > 0 else 1e-300)
        axis.semilogy(degrees[:last], shown, "o", ms=4, color="#1b6ca8", label="coefficients of the policy")
        if decay.scale:
            k = np.arange(1, last)
            label = f"{decay.rho:.3g}$^{{-k}}$" if decay.kind == "geometric" else f"$k^{{-{decay.order:.2g}}}$"
            seen = decay.law(k) > tiny
            axis.semilogy(k[seen], decay.law(k)[seen], color="#d1495b", lw=1.3, label=f"the law they follow, {label}")
        if decay.resolved:
            axis.semilogy(
                degrees[:last], decay.errors[:last], color="#a0a0a0", lw=1, ls="--", label="noise or rounding"
            )
        words, right = "total degree", last
        if decay.dimension == 1:
            words, right = "degree", max(last, self.functions)
            axis.axvline(self.functions - 0.5, color="#3a7d44", lw=1, label=f"the basis, N = {self.functions}")
        axis.set(xlabel=words, ylabel="size", title=f"Coefficients by {words}", xlim=(-0.5, right))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        if decay.kind == "algebraic":
            axis.set(xscale="log", xlim=(0.9, right))
        axis.legend(frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
        if path is None:
            return figure
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
        plt.close(figure)
        return path


def diagnose(problem: Problem, basis: Basis, samples: Data, x: PyTree | None = None) -> Diagnosis:
    """What stands between a basis, the data and a good policy: numbers, and advice in words and as objects.

    **Arguments:**

    - `problem`, `samples`: as for ``cb.solve``; `basis`: the one in question.
    - `x`: where to look, ``problem.x0`` by default. Policies at other ``x`` may be smoother or rougher.
    """
    check(problem, samples)
    dtype = working_dtype(problem, samples)
    problem = problem.astype(dtype)
    x = _point(problem, x)
    upper, lower = levels(samples)
    endless = isinstance(lower, Stream)
    if endless:
        lower = lower.draw(jax.random.key(0), ROWS)
        samples = Levels(lower if upper is levels(samples)[1] else upper, lower)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few contexts: the advice says so
        reduced = build(problem, basis, samples)
    xi = _contexts(lower)
    u = np.asarray(problem.domain.reference(xi), dtype=float)
    noisy = lower_depends_on_noise(problem, lower) and not isinstance(lower, Product)
    functions = reduced.basis.size
    observed = np.asarray(lower.context_rule().xi if isinstance(lower, Product) else lower.xi)
    distinct = len(np.unique(observed, axis=0))
    per_function = (len(lower) if noisy and isinstance(lower, Samples) else distinct) / functions

    spectrum = np.asarray(reduced.whitening.singular_values, dtype=float)  # pyright: ignore[reportOptionalMemberAccess]
    spectrum = np.pad(spectrum, (0, functions - len(spectrum)))
    look = look_at(lower, functions, sum(leaf.size for leaf in jax.tree.leaves(problem.y0)))
    white = replace(reduced, lower_source=Table(batch_of(reduced, look.samples))).whitened()
    W = restore(white, fitted(white, x))
    mu, L = curvatures(reduced, x, W, look.samples)
    policy = expand(problem, x, look)
    diagnosis = Diagnosis(
        basis=basis,
        M_Phi=max(1.0, _supremum(reduced, xi)),
        m_Phi=min(1.0, float(spectrum[-1]) ** 2),
        rank=reduced.whitening.rank,  # pyright: ignore[reportOptionalMemberAccess]
        functions=functions,
        distinct=distinct,
        per_function=float("inf") if endless else per_function,
        mu=mu,
        L=L,
        decay=policy.decay,
        source=policy.source,
        spread=policy.spread,
        misfit=policy.misfit(reduced, W, (float(u.min()), float(u.max()))),
        conditions=_conditions(problem.domain, u, policy.decay),
    )
    return replace(diagnosis, advice=_advise(diagnosis, problem.domain, u, spectrum, noisy))


def _point(problem: Problem, x: PyTree | None) -> PyTree:
    if x is None:
        return problem.x0
    if jax.tree.map(jnp.shape, x) != jax.tree.map(jnp.shape, problem.x0):
        raise ValueError(
            f"x must have the shapes of x0, {jax.tree.map(jnp.shape, problem.x0)}, got {jax.tree.map(jnp.shape, x)}."
        )
    return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), x, problem.x0)


def _contexts(lower: Samples | Product) -> Array:
    """Contexts as they are drawn, for the shape of their law."""
    if isinstance(lower, Product) and isinstance(lower.contexts, Distribution):
        return lower.contexts.sample(jax.random.key(0), ROWS)
    return lower.context_rule().xi if isinstance(lower, Product) else lower.xi


def _supremum(reduced: Reduced, xi: Array) -> float:
    """The largest norm of the features seen: on a grid with its corners, and at observed contexts."""
    domain, most = reduced.problem.domain, max(64, _SUP_NUMBERS // reduced.basis.size)
    if isinstance(domain, Finite):
        places = [jnp.asarray(domain.values)]
    else:
        each = max(2, int(min(most, 20_000) ** (1 / domain.dimension)))
        if each**domain.dimension <= most:
            u = np.stack(np.meshgrid(*[np.linspace(-1, 1, each)] * domain.dimension, indexing="ij"), axis=-1)
        else:  # many dimensions: corners and points in between, at random
            u = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], (most, domain.dimension), p=[0.45, 0.1, 0.45])
        dtype = reduced.basis.constant.dtype
        places = [domain.place(jnp.asarray(u.reshape(-1, domain.dimension), dtype)), domain.snap(xi[:most], dtype)]
    return max(float(jnp.max(jnp.linalg.norm(reduced.basis(place), axis=-1))) for place in places)


def _conditions(domain: Domain, u: Float[np.ndarray, "n d"], decay: Decay | None) -> dict[str, Condition]:
    """The conditions of the convergence theorem for Chebyshev bases, as far as contexts and coefficients show them."""
    if isinstance(domain, Finite):
        return {"density": Condition(True, "contexts are finite.")}
    count = len(u)
    cells = int(np.clip(count // _CELL, 1, _CELLS))
    held = np.stack([np.histogram(column, cells, (-1, 1))[0] for column in u.T])
    thin, even = int(held.min()), count / cells
    dense = None if cells < 4 else bool(thin + 3 * np.sqrt(thin + 1) >= even / 2)
    words = (
        "too few contexts." if cells < 4 else f"the emptiest of {cells} cells holds {thin / even:.0%} of an even share."
    )
    covered = _covered_share(u)
    full = None if count < 20 else bool(np.all(1 - covered <= max(0.1, 10 / count)))
    kinds = {"geometric": True, "finite": True, "algebraic": False}
    analytic = {True: "nothing speaks against it.", False: "the policy has a kink.", None: "too little to go by."}
    smooth = None if decay is None else kinds.get(decay.kind)
    if decay is not None and decay.kinks:
        analytic[False] = (
            f"the policy has a kink near {', '.join(f'xi = {kink.location:.3g}' for kink in decay.kinks)}."
        )
    return {
        "density": Condition(dense, words),
        "coverage": Condition(full, f"contexts fill {', '.join(f'{share:.0%}' for share in covered)} of the domain."),
        "analytic": Condition(smooth, analytic[smooth]),
    }


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
