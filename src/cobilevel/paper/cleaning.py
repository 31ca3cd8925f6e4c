"""The cleaning experiment: weights for training images with wrong labels, over a range of temperatures.

Printed in the paper: 19,000 training and 1,000 validation images of MNIST, labels redrawn with probability 0.3,
temperatures uniform on (0.1, 10), a linear classifier with ridge 1e-3, batches of 512, ``K = 10`` factors of scale
``s = 1e-2``, the grid of step sizes, 20 trials. Not printed, and chosen here: the number of steps, a start at weights
1/2 and classifiers 0, moving averages over a tenth of a run. Step sizes are chosen, and methods judged, by moving
averages of the losses along the iterates, as the paper shows them; averaged answers are judged too.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from ..basis import FeatureMap, Features
from ..gallery import Images, Instance, best_coefficients, cleaning
from ..problem import Interval, Levels, Product
from ..reduction import Bilevel, reduce_with
from ..study import Study
from ..sweep import How, Pool, Runs
from .lab import Judged, Lab
from .methods import FAMILIES, Budget, Grid, Method, SearchRung

WINDOW = 0.1  # of a run: the moving average of its curves
_TEMPERATURES = (0.1, 10.0)
_KINDS = list(dict.fromkeys(FAMILIES.values()))

_QUICK = Budget(
    instances=3, steps=120, chunk=12, rungs=(SearchRung(1, 1, 60),), grid=Grid((0.1,), (1e2, 1e3), (10,)),
    bases=(5,), cells=(5, 20), together=How(1, 1, 1),
)  # fmt: skip
CLEANING_BUDGETS = {
    "quick": _QUICK,
    "default": replace(_QUICK, steps=240, grid=Grid((1.0, 10.0), (1e4, 1e5), (10,))),  # around what the whole one gives
    "full": Budget(
        instances=20, steps=12_000, chunk=100, grid=Grid(), bases=(5, 20), cells=(5, 20, 50), bare=(5,),
        rungs=(SearchRung(20, 1, 100), SearchRung(2, 1, 1000), SearchRung(1, 1, 12_000)),
        further=(SearchRung(2, 1, 1000), SearchRung(1, 1, 12_000)), extended=4,
        together=How(20, 20, 1),  # twenty at once took a third to a ninth of the time of fewer
    ),
}  # fmt: skip


@cache
def _every_family(N: int) -> Features:
    """All families of one size side by side: a matrix picks one of them, so that they share compiled programs."""
    some = jnp.linspace(*_TEMPERATURES, 2 * N + 2)
    fitted = [kind(N).fit(Interval(*_TEMPERATURES), some, None) for kind in _KINDS]
    return Features(lambda xi: jnp.concatenate([each(xi) for each in fitted], axis=-1), N * len(fitted))


def _nodes(one: Instance, count: int = 32) -> tuple[jax.Array, jax.Array]:
    """Temperatures by Gauss quadrature, and their shares: those at which losses are watched and policies judged."""
    return one.train.upper.law.quadrature(count)  # pyright: ignore[reportOptionalMemberAccess]


def _fit_nodes(method: Method) -> int:
    """Temperatures of the rule to which a basis is fitted: fine enough for it."""
    return 4 * method.N


def _study(one: Instance, method: Method) -> Study:
    """The problem with a rule of temperatures for the basis (batches draw them afresh anyway)."""
    levels = one.train.upper, one.train.lower
    return Study.of(one.problem, Levels(*(Product(level.law, level.eta, _fit_nodes(method)) for level in levels)))  # pyright: ignore


def _shared(one: Instance, method: Method) -> Bilevel:
    """The reduced problem, its basis written as a choice among all families."""
    study = _study(one, method)
    fitted, place = method.features(study), _KINDS.index(FAMILIES[method.family])
    every = jnp.eye(method.N * len(_KINDS), dtype=fitted.constant.dtype)
    pick = jnp.asarray(method.scale, every.dtype) * every[:, place * method.N : (place + 1) * method.N]
    chosen = FeatureMap(_every_family(method.N), fitted.domain, pick, fitted.constant)
    return reduce_with(study, chosen).ordinary()


def _entropies(y: jax.Array, xi: jax.Array, data: Any) -> jax.Array:
    """``CE(X y / xi, Y)``, temperature by image."""
    logits = jnp.einsum("np,mpc->mnc", data["image"], y) / xi[:, None, None]
    chosen = jnp.take_along_axis(logits, data["label"][None, :, None], axis=2)[..., 0]
    return jax.nn.logsumexp(logits, axis=2) - chosen


class Watch(eqx.Module):
    """Losses and weights on the way: over a quadrature of temperatures and all images of each level."""

    pool: Pool
    features: jax.Array
    nodes: jax.Array
    shares: jax.Array
    regulariser: jax.Array

    def losses(self, i: jax.Array, x: jax.Array, W: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Validation and training loss of a decision and its policy on instance ``i``."""
        reduced, y = self.pool[i], jnp.einsum("mk,kpc->mpc", self.features, W)
        upper, lower = reduced.upper_source.product.eta, reduced.lower_source.product.eta  # pyright: ignore
        validation = jnp.mean(_entropies(y, self.nodes, upper), axis=1)
        ridge = self.regulariser * jnp.sum(y**2, axis=(1, 2))
        weighted = jax.nn.sigmoid(x) * _entropies(y, self.nodes, lower)
        return self.shares @ validation, self.shares @ (jnp.mean(weighted, axis=1) + ridge)

    def __call__(self, state: Any, i: jax.Array) -> dict[str, jax.Array]:
        validation, training = self.losses(i, state.x, state.W)
        return {"validation": validation, "training": training, "weight": jnp.mean(jax.nn.sigmoid(state.x))}


@eqx.filter_jit
def _score(watch: Watch, which: jax.Array, xs: jax.Array, Ws: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Validation and training loss of the averaged answers."""
    return jax.lax.map(lambda item: watch.losses(*item), (which, xs, Ws))


@eqx.filter_jit
def _accuracies(test: Any, y: jax.Array) -> jax.Array:
    """Test accuracy, by temperature."""
    hits = jnp.argmax(jnp.einsum("np,mpc->mnc", test["image"], y), axis=2) == test["label"]
    return jnp.mean(hits, axis=1)


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a random positive has a higher score than a random negative, ties counting half."""
    if positive.all() or not positive.any():
        return float("nan")
    pairs = positive.sum() * (~positive).sum()
    return float(scipy.stats.mannwhitneyu(score[positive], score[~positive], method="asymptotic").statistic / pairs)


class Cleaning(Lab):
    """Hyper-cleaning of images."""

    name = "cleaning"
    scale = 1e-2
    shuffle = False  # independent draws: contexts are drawn afresh in any case, and permutations are slow on a GPU

    def __init__(self, budget: Budget, runs: Runs, images: Images):
        super().__init__(budget, runs)
        self.images = images
        self._instances: dict[int, Instance] = {}
        self._pools: dict[Any, Pool] = {}

    def __getstate__(self) -> dict[str, Any]:
        """As it goes to another process: without what can be made again."""
        return self.__dict__ | {"_instances": {}, "_pools": {}}

    def identity(self):
        return super().identity() | {"data": self.images.name}

    def instance(self, seed: int) -> Instance:
        if seed not in self._instances:
            self._instances[seed] = cleaning(seed, self.images, temperatures=_TEMPERATURES)
        return self._instances[seed]

    def plan(self):
        batch = min(512, len(self.instance(0).problem.x0) // 2)
        return [(Method("StocBiO", *row, batch=batch), self.budget.instances) for row in self.budget.table()]

    def pool(self, method, seeds):
        """The pool of a method; only the last one is kept, since it holds the images of every trial."""
        key = (method, tuple(seeds))
        if key not in self._pools:
            most = max(rung.instances for rung in self.budget.rungs)  # filled up, so that rounds share programs
            table = [self.instance(seeds[k % len(seeds)]) for k in range(max(len(seeds), most))]
            self._pools = {key: Pool.of([_shared(one, method) for one in table])}
        return self._pools[key]

    def held(self, method):
        pixels, classes = self.instance(0).problem.y0.shape
        return len(self.instance(0).problem.x0) + method.N * pixels * classes

    def observe(self, method, seeds):
        one = self.instance(seeds[0])
        fitted, (nodes, shares) = method.features(_study(one, method)), _nodes(one)
        parts = (fitted(nodes), nodes, shares, one.problem.lower.regulariser)  # pyright: ignore
        return Watch(self.pool(method, seeds), *(jnp.asarray(part, fitted.constant.dtype) for part in parts))

    def judge(self, method, seeds, which, bundle, final):
        last = max(1, round(WINDOW * bundle.curves["validation"].shape[1]))
        names = ("validation", "training")
        numbers = {name: bundle.curves[name][:, -last:].mean(axis=1).astype(float) for name in names}
        score = numbers["validation"]
        if not final:
            return Judged(numbers, {}, score)
        xs, Ws = bundle.states.average.x, bundle.states.average.W
        averaged = _score(self.observe(method, seeds), jnp.asarray(which), xs, Ws)
        numbers |= {f"{name}_averaged": np.asarray(v, dtype=float) for name, v in zip(names, averaged, strict=True)}
        closer = [self._closely(method, seeds[int(i)], xs[k], Ws[k]) for k, i in enumerate(np.asarray(which))]
        numbers |= {name: np.array([one[0][name] for one in closer]) for name in closer[0][0]}
        curves = {name: np.stack([one[1][name] for one in closer]) for name in closer[0][1]}
        return Judged(numbers, curves, score)

    def temperatures(self) -> np.ndarray:
        """Where policies are compared with exact classifiers: Gauss nodes, which crowd where policies change most."""
        return np.asarray(_nodes(self.instance(0))[0])

    def _closely(
        self, method: Method, seed: int, x: Any, W: Any, in_span: int = 3, tolerance: float = 1e-4
    ) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """One answer against exact classifiers: the true ``F``, ``Delta_y``, who was found out, accuracy.

        Gradients of the exact ones are at most `tolerance` of those at zero. In the first `in_span` trials the best
        policy in the span is computed too: what the basis can do, with any solver.
        """
        one, dtype = self.instance(seed), W.dtype
        fitted, (nodes, shares) = method.features(_study(one, method)), _nodes(one)
        xi, shares = jnp.asarray(nodes, dtype), np.asarray(shares, dtype=float)
        policy = lambda W: jnp.einsum("mk,kpc->mpc", fitted(xi).astype(dtype), W)
        exact = one.truth.fit(x, xi, start=policy(W), tolerance=tolerance)
        errors = lambda y: np.asarray(jnp.sum((y - exact.y) ** 2, axis=(1, 2)), dtype=float)
        table = {}
        for name, y in (("policy", policy(W)), ("exact", exact.y)):
            loss = jnp.mean(_entropies(y, xi, one.train.upper.eta), axis=1)  # pyright: ignore
            parts = (loss, _accuracies(one.test.eta, y), jnp.sqrt(jnp.sum(y**2, axis=(1, 2))))
            table[name] = np.stack([np.asarray(v, dtype=np.float32) for v in parts], axis=1)
        error, within = errors(policy(W)), np.full(len(xi), np.nan)
        if seed < in_span:
            truth, ridge = one.truth, jnp.asarray(one.problem.lower.regulariser, dtype)  # pyright: ignore
            rule, shared = (jnp.asarray(a, dtype) for a in _nodes(one, _fit_nodes(method)))
            known = (truth.images, truth.labels, jax.nn.sigmoid(jnp.asarray(x, dtype)), ridge)
            best = best_coefficients(*known, fitted(rule).astype(dtype), rule, shared, W)
            within = errors(policy(best))
        numbers = {
            "loss": float(shares @ table["exact"][:, 0]),
            "policy_error": float(shares @ error),
            "size": float(shares @ table["exact"][:, 2] ** 2),
            "accuracy": float(shares @ table["policy"][:, 1]),
            "auc": auc(-np.asarray(x), one.truth.corrupted),
            "weight": float(jnp.mean(jax.nn.sigmoid(x))),
            "exact_gradient": float(jnp.max(exact.gradient)),
        }
        return numbers, table | {"error": error.astype(np.float32), "within": within.astype(np.float32)}
