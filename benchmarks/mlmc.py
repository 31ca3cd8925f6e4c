r"""What does a level of RT-MLMC buy, and what does it cost? Bias, variance and draws by level, against the theory.

On the quadratic gallery problem at its ``x0``, over many contexts. ``y_k`` is where EPOCH-GD stands after epoch ``k``,
and ``v_k`` the hypergradient estimate with it; ``v`` is the same with the exact ``y*`` and the same draws, so that what
is left is due to the level. The theory (Hu et al., 2023): ``E |y_k - y*|^2`` and ``E |v_{k+1} - v_k|^2`` fall by 2 a
level (they are ``O(2^-k)``), the bias ``|E v_k - E v|`` at least by ``sqrt(2)`` (here faster: both levels are
quadratic, and the bias is that of the mean of ``y_k``), while the draws double. So with chances ``p_k ~ 2^-k`` one
estimate takes ``O(K)`` draws on average and has a variance of ``O(K)``, for the bias of level ``K``: that is
``O(log 1/eps)`` draws for a bias of ``eps``. ``DLSGD`` takes ``O(2^K)``. Averages
over ``--contexts`` contexts; the standard error of a bias is
shown after it.
"""

from typing import Any

import jax
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import equinox as eqx
import jax.numpy as jnp

import cobilevel as cb
from cobilevel.direct.method import draw_joint
from cobilevel.study import Study


def prepared(seed: int, first: int | None = None, **quadratic: Any) -> tuple[Any, Any, Any]:
    """The instance, its study and the inner solver, with noise that the lower level feels."""
    instance = cb.gallery.quadratic(seed, noise=(0.1, 1.0), **quadratic)
    study = Study.of(instance.problem, instance.train)
    return instance, study, cb.direct.RTMLMC(first=first).prepared(study, jax.random.key(seed))


@eqx.filter_jit
def path(inner: Any, x: Any, xi: Any, eta: Any, exact: Any, key: Any, levels: int) -> tuple[Any, Any]:
    """At one context: ``y_k - y*`` and ``v_k - v`` for each level."""

    def one(xi, eta, exact, key):
        for_epochs, for_series = jax.random.split(key)

        def epoch(y, number):
            y = inner.epochs(x, y, xi, for_epochs, number, number + 1)
            return y, y

        _, points = jax.lax.scan(epoch, inner.start, jnp.arange(levels))
        slopes = jax.vmap(lambda y: inner.hypergradient(x, y, xi, eta, for_series))(jnp.append(points, exact[None], 0))
        return points - exact, slopes[:-1] - slopes[-1]

    return jax.vmap(one)(xi, eta, exact, key)


def measured(levels: int, contexts: int, seed: int = 0, **settings: Any) -> dict[str, np.ndarray]:
    """By level: mean squared error of ``y``, bias and its error, second moment of the increment, draws."""
    instance, study, inner = prepared(seed, **settings)
    xi, eta = draw_joint(study.upper, jax.random.key(seed + 1), contexts)
    eta = jax.tree.map(lambda a: a[:, None], eta)
    x = jnp.asarray(instance.problem.x0)
    exact = instance.truth.y(x, xi)
    keys = jax.random.split(jax.random.key(seed + 2), contexts)
    gaps, slopes = (np.asarray(a) for a in path(inner, x, xi, eta, exact, keys, levels))
    return {
        "error": np.mean(np.sum(gaps**2, axis=2), axis=0),
        "bias": np.linalg.norm(slopes.mean(axis=0), axis=1),
        "bias_error": np.sqrt(np.sum(slopes.var(axis=0), axis=1) / contexts),
        "increment": np.append(np.mean(np.sum(np.diff(slopes, axis=1) ** 2, axis=2), axis=0), np.nan),
        "draws": inner.first * (2.0 ** (np.arange(levels) + 1) - 1),
    }


def truncated(found: dict[str, np.ndarray], last: int) -> tuple[float, float, float]:
    """Of RT-MLMC with ``K = last``: draws on average, second moment of the random term, draws of DLSGD."""
    chances = cb.direct.RTMLMC(epochs=last).chances
    cost = float(chances @ found["draws"][1 : last + 1])
    return cost, float(np.sum(found["increment"][:last] / chances)), float(found["draws"][last])


def main() -> None:
    arguments = harness.arguments(
        __doc__, ("--levels", 9, "epochs"), ("--contexts", 4000, "averaged over"), ("--seed", 0, "of the instance")
    )
    found = measured(arguments.levels, arguments.contexts, arguments.seed)
    print(
        f"{'level':>5} {'E|y-y*|^2':>11} {'ratio':>6} {'bias':>10} {'+-':>9} {'E|dv|^2':>11} {'ratio':>6} {'draws':>8}"
    )
    ratio = lambda name, k: f"{found[name][k] / found[name][k - 1]:6.2f}" if k else " " * 6
    for k in range(arguments.levels):
        print(
            f"{k:>5} {found['error'][k]:11.3e} {ratio('error', k)} {found['bias'][k]:10.2e} "
            f"{found['bias_error'][k]:9.1e} {found['increment'][k]:11.3e} {ratio('increment', k)} "
            f"{found['draws'][k]:8.0f}"
        )
    print(f"\n{'K':>5} {'RT-MLMC: draws':>15} {'second moment':>14} {'DL-SGD: draws':>14}")
    for last in range(1, arguments.levels):
        cost, moment, plain = truncated(found, last)
        print(f"{last:>5} {cost:15.0f} {moment:14.3e} {plain:14.0f}")


if __name__ == "__main__":
    main()
