r"""``Amortized``: a network for the policy, and one for the adjoint: functional bilevel optimization.

The lower level is a problem over functions of the context, $h^\star = \arg\min_h E\, g(x, h(\xi), \xi, \eta)$, and so
is the adjoint,
$$a^\star = \arg\min_a E[\tfrac12 \langle a, \partial_{22} g\, a \rangle - \langle a, \partial_2 f \rangle],$$
with $\nabla F = E\, \partial_1 f - E\, \partial_{12} g\, a^\star(\xi)$. Both are fitted to joint samples by Adam while
``x`` takes gradient steps. No derivative is taken through the training.

Reference: I. Petrulionyte, J. Mairal and M. Arbel, Functional bilevel optimization for machine learning, NeurIPS 2024.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..derivatives import AtContext, flattened, parameter_gradient, totals_of
from ..ground import as_key, generator, positive, whole
from ..iteration import Adam, Result
from ..problem import Domain, Finite, Level, Mixed
from ..study import Study
from .local_weights import LocalWeights, shaped
from .method import Direct, DirectRun, Lengths, draw_joint, objectives_of, outer_step
from .pointwise import Pointwise


def _inputs(domain: Domain, xi: Array) -> Array:
    """A context as the network sees it: in ``[-1, 1]``, circles as circles, categories as one of many."""
    if isinstance(domain, Mixed):
        return jnp.concatenate([_inputs(part, xi[j]) for j, part in enumerate(domain.components)])
    if isinstance(domain, Finite):
        return jax.nn.one_hot(domain.index(xi), len(domain.values), dtype=xi.dtype)
    return jnp.atleast_1d(domain.embedded(xi))


class Network(eqx.Module):
    """``centre + scale * MLP``, a function of one context."""

    layers: eqx.nn.MLP
    domain: Domain
    centre: Float[Array, " dy"]
    scale: Float[Array, " dy"]

    def __call__(self, xi: Array) -> Float[Array, " dy"]:
        fixed = jax.lax.stop_gradient((self.domain, self.centre, self.scale))
        return fixed[1] + fixed[2] * self.layers(_inputs(fixed[0], xi))


class _State(NamedTuple):
    x: Array
    policy: Network
    adjoint: Network
    moments: tuple[Adam, Adam]  # of Adam, for both


class Amortized(Direct):
    """Networks for policy and adjoint, fitted to joint samples, alternating with steps in ``x``.

    **Arguments:**

    - `outer`: the first step in ``x``; by default a tenth of one over the curvature at the start, estimated from rough
      local means, so that the networks can follow. `inner`: the learning rate of Adam for both networks. Both decay to
      zero along a cosine.
    - `fits`: steps of each network per step in ``x``; `batch`: samples in each.
    - `width`, `depth`: the size of the networks.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> solution = cb.direct.Amortized(width=8, depth=1).solve(case.problem, case.train, steps=10)
    >>> solution.policy(case.test.xi[:5]).shape
    (5, 1)
    """

    outer: Any = None
    inner: Any = 0.003
    fits: int = eqx.field(static=True, default=10)
    batch: int = eqx.field(static=True, default=256)
    width: int = eqx.field(static=True, default=32)
    depth: int = eqx.field(static=True, default=2)

    def __check_init__(self):
        for part in ("fits", "batch", "width", "depth"):
            whole(f"Amortized: {part}", getattr(self, part))
        for part in ("outer", "inner"):
            if getattr(self, part) is not None:
                positive(f"Amortized: {part}", getattr(self, part))

    @property
    def default_steps(self):
        return 500

    def _begin(self, study: Study, key: Array) -> tuple[_State, float]:
        """Networks in the units of rough local means at a few contexts; and the outer step these suggest."""
        domain, dtype = study.problem.domain, study.dtype
        pilot = _pilot(study, key, self.batch // 4)
        x, slope = jnp.asarray(flattened(study.problem.x0), dtype), _slope_of(pilot)
        slope(x)
        y, v, mass = pilot.y, pilot.v, pilot.back(np.asarray(pilot.shares)[:, None])
        v = np.zeros_like(y) if v is None else v / np.where(mass > 0, mass, 1)
        networks = []
        for number, table in enumerate((y, v)):
            size = np.hypot(table.std(axis=0), 0.1 * np.abs(table.mean(axis=0)))  # in case they hardly vary
            seed = jax.random.fold_in(key, number)
            inputs = len(_inputs(domain, pilot.nodes.xi[0].astype(dtype)))
            layers = eqx.nn.MLP(inputs, y.shape[1], self.width, self.depth, jnp.tanh, dtype=dtype, key=seed)
            scale = np.where(size > 0, size, 1.0)
            networks.append(Network(layers, domain, jnp.asarray(table.mean(axis=0), dtype), jnp.asarray(scale, dtype)))
        moments = tuple(Adam.none(eqx.filter(one.layers, eqx.is_array)) for one in networks)
        outer = 0.1 * outer_step(slope, x) if self.outer is None else float(self.outer)
        return _State(x, networks[0], networks[1], moments), outer

    def run(self, study, key, limits):
        for_start, for_run = jax.random.split(key)
        state, outer = self._begin(study, for_start)
        bounds = tuple(jnp.asarray(flattened(end), study.dtype) for end in study.problem.x_bounds)
        course, diverged, functions = Lengths(limits, study.dtype), False, objectives_of(study)
        for numbers, shares in course:
            keys = jax.vmap(lambda k: jax.random.fold_in(for_run, k))(numbers)
            rising = jnp.minimum(1, 10 * (numbers + 1) / limits.steps).astype(study.dtype)  # the networks go ahead
            lengths = outer * rising * shares, self.inner * shares
            alone = replace(self, outer=None, inner=None)
            after, slope = _advance(alone, functions, study.upper, study.lower, state, bounds, lengths, keys)
            diverged = not all(np.isfinite(a).all() for a in jax.tree.leaves(eqx.filter(after, eqx.is_array)))
            if diverged:
                break
            state = after
            course.record(state.x, slope)
        network = state.policy
        follow = lambda xi: shaped(study, _followed(network, jnp.asarray(xi, study.dtype)))
        each = course.done * self.batch
        counts = {
            "upper_gradient": each * (self.fits + 1), "lower_gradient": each * self.fits,
            "hessian_vector": each * self.fits, "cross_product": each,
        }  # fmt: skip
        calls = {(kind, "calls"): n // self.batch for kind, n in counts.items()}
        spent = totals_of({**calls, **{(kind, "samples"): n for kind, n in counts.items()}})
        result = Result.DIVERGED if diverged else course.result()
        return DirectRun(np.asarray(state.x, float), result, follow, spent, {"steps": f"outer step {outer:.3g}."})


@eqx.filter_jit
def _followed(network: Network, xi: Array) -> Array:
    return jax.vmap(network)(xi)


def _pilot(study: Study, key: Array, most: int) -> Pointwise:
    """The problem with rough local means at a few contexts, each standing for those near it."""
    contexts, domain = study.lower.contexts(), study.problem.domain
    place = lambda xi: np.asarray(domain.embedded(jnp.asarray(xi)))
    few = generator(key).permutation(len(contexts))[:most]
    nodes = np.unique(np.asarray(contexts.xi)[few], axis=0)
    near = place(study.upper.contexts().xi)
    apart = np.linalg.norm(near[:, None] - place(nodes)[None], axis=2)
    return Pointwise(study, LocalWeights().rows_at(study, nodes), np.argmin(apart, axis=1))


def _slope_of(pilot: Pointwise) -> Any:
    return lambda at: jnp.asarray(pilot(np.asarray(at, float))[1], pilot.study.dtype)


def rough_outer_step(study: Study, contexts: int = 64) -> float:
    """A first outer step: one over the curvature of the upper objective at the start, from rough local means.

    **Arguments:**

    - `study`: the problem with its data, checked; `contexts`: at how many contexts means are computed.

    **Example:**

    >>> case = cb.gallery.quadratic(0, dx=2, dy=1, train=300, test=300)
    >>> from cobilevel.study import Study
    >>> 0.01 < cb.direct.rough_outer_step(Study.of(case.problem, case.train)) < 10
    True
    """
    return outer_step(
        _slope_of(_pilot(study, as_key(0), contexts)), jnp.asarray(flattened(study.problem.x0), study.dtype)
    )


@eqx.filter_jit
def _advance(
    method: Amortized, functions: AtContext, upper: Level, lower: Level, state: _State, bounds: Any,
    lengths: Any, keys: Any,
) -> Any:  # fmt: skip
    """Some outer steps, and the mean of their gradients."""
    one, size = jnp.ones(1, state.x.dtype), method.batch
    alone = lambda eta: jax.tree.map(lambda a: a[None], eta)

    def fitted(network: Network, moments: Adam, directions: Any, xi: Any, share: Any) -> tuple[Network, Any]:
        """One step of Adam against directions at the network's values."""

        def loss(layers: Any) -> Any:
            values = jax.vmap(eqx.tree_at(lambda n: n.layers, network, layers))(xi)
            return jnp.sum(values * jax.lax.stop_gradient(directions)) / len(xi)

        slope = parameter_gradient(loss, network.layers)
        change, moments = moments.after(slope)
        scaled = jax.tree.map(lambda a: -share * a, change)
        return eqx.tree_at(lambda n: n.layers, network, eqx.apply_updates(network.layers, scaled)), moments

    def fit(carry: Any, key: Array, x: Any, share: Any) -> Any:
        policy, adjoint, (first, second) = carry
        for_lower, for_upper = jax.random.split(key)
        (xi, eta), (above, noise) = draw_joint(lower, for_lower, size), draw_joint(upper, for_upper, size)
        y, a = jax.vmap(policy)(xi), jax.vmap(adjoint)(xi)
        slopes = jax.vmap(lambda q, c, e: functions.slope(x, q, c, alone(e), one)[1])(y, xi, eta)
        images = jax.vmap(lambda q, v, c, e: functions.product(x, q, v, c, alone(e), one))(y, a, xi, eta)
        wanted = jax.vmap(lambda c, e: functions.upper_slopes(x, policy(c), c, alone(e), one)[2])(above, noise)
        policy, first = fitted(policy, first, slopes, xi, share)
        both = jnp.concatenate([2 * images, -2 * wanted])  # means over each half
        adjoint, second = fitted(adjoint, second, both, jnp.concatenate([xi, above]), share)
        return (policy, adjoint, (first, second)), None

    dynamic, static = eqx.partition(tuple(state), eqx.is_array)

    def step(carry: Any, given: Any) -> Any:
        now = _State(*eqx.combine(carry, static))
        length, share, key = given
        for_fits, for_upper, for_lower = jax.random.split(key, 3)

        def fit_arrays(inner: Any, key: Array) -> Any:
            whole_state = eqx.combine(inner, tuple(static)[1:])
            after, _ = fit(whole_state, key, now.x, share)
            return eqx.filter(after, eqx.is_array), None

        networks, _ = jax.lax.scan(fit_arrays, carry[1:], jax.random.split(for_fits, method.fits))
        policy, adjoint, _ = eqx.combine(networks, tuple(static)[1:])
        above, noise = draw_joint(upper, for_upper, size)
        d1 = jax.vmap(lambda c, e: functions.upper_slopes(now.x, policy(c), c, alone(e), one)[1])(above, noise)
        xi, eta = draw_joint(lower, for_lower, size)
        along = lambda c, e: functions.cross(now.x, policy(c), adjoint(c), c, alone(e), one)
        slope = jnp.mean(d1, axis=0) - jnp.mean(jax.vmap(along)(xi, eta), axis=0)
        x = jnp.clip(now.x - length * slope, *bounds)
        return (x, *networks), slope

    dynamic, slopes = jax.lax.scan(step, dynamic, (*lengths, keys))
    return _State(*eqx.combine(dynamic, static)), jnp.mean(slopes, axis=0)
