"""The cleaning experiment: weights for training images with wrong labels, over a range of temperatures.

Printed in the paper: 19,000 training and 1,000 validation images of MNIST, labels redrawn with probability 0.3,
temperatures uniform on (0.1, 10), a linear classifier with ridge 1e-3, batches of 512, ``K = 10`` factors of scale
``s = 1e-2``, the grid of step sizes, 20 trials. Not printed, and chosen here: the number of steps, a start at weights
1/2 and classifiers 0, moving averages over a tenth of a run.
"""

from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from ...basis import FeatureMap, Features
from ...gallery import Images, Instance, cleaning
from ...problem import Interval, Levels, Product, Study
from ...reduction import Bilevel, reduce_study, reduce_with
from ...sweep import How, Pool, Runs
from ..lab import FAMILIES, Budget, Judged, Lab, Method
from ..tuning import Grid, SearchRung

_TEMPERATURES = (0.1, 10.0)
_NODES = 8  # temperatures at which losses are watched and policies judged, by Gauss quadrature
_NODES_EACH = 4  # temperatures of the rule to which a basis is fitted, for each function
_GRADIENT_LEFT = 1e-4  # the gradient of the classifiers that policies are compared with, as a share of the one at zero
_CPU, _GPU = (How(1, 1, 1),), (How(20, 4, 1), How(20, 20, 1))

_QUICK = Budget(
    instances=3,
    steps=120,
    chunk=12,
    rungs=(SearchRung(1, 1, 60),),
    grid=Grid((0.1,), (1e2, 1e3), (10,)),
    polynomials=(5,),
    partitions=(5, 20),
    candidates=_CPU,
)

CLEANING_BUDGETS = {
    "quick": _QUICK,
    "default": replace(_QUICK, steps=240, grid=Grid((1.0, 10.0), (1e4, 1e5), (10,))),  # around what the whole one gives
    "full": Budget(
        instances=20,
        steps=2000,
        chunk=50,
        rungs=(SearchRung(20, 1, 50), SearchRung(5, 1, 200), SearchRung(1, 1, 600)),
        grid=Grid(),
        polynomials=(5, 20),
        partitions=(5, 20, 50),
        candidates=_GPU,
    ),
}


@cache
def _every_family(N: int) -> Features:
    """All families of one size side by side: a matrix picks one of them, so that they share compiled programs."""
    some = jnp.linspace(*_TEMPERATURES, 2 * N + 2)
    fitted = [kind(N).fit(Interval(*_TEMPERATURES), some, None) for kind in FAMILIES.values()]
    return Features(lambda xi: jnp.concatenate([each(xi) for each in fitted], axis=-1), N * len(fitted))


def _looked_at(one: Instance) -> tuple[jax.Array, jax.Array]:
    """The temperatures at which runs are looked at, and their shares."""
    return one.train.upper.law.quadrature(_NODES)  # pyright: ignore[reportOptionalMemberAccess]


def _study(one: Instance, method: Method) -> Study:
    """The problem with a rule of temperatures fine enough for the basis (batches draw them afresh anyway)."""
    levels = one.train.upper, one.train.lower
    return Study.of(one.problem, Levels(*(Product(level.law, level.eta, _NODES_EACH * method.N) for level in levels)))  # pyright: ignore


def _features_of(study: Study, method: Method) -> FeatureMap:
    """The basis of a method."""
    return reduce_study(study, method.basis).basis


def _shared(one: Instance, method: Method) -> Bilevel:
    """The reduced problem, its basis written as a choice among all families."""
    study = _study(one, method)
    fitted = _features_of(study, method)
    place, raw = list(FAMILIES).index(method.family), method.N * len(FAMILIES)
    pick = jnp.eye(raw, dtype=fitted.constant.dtype)[:, place * method.N : (place + 1) * method.N]
    chosen = FeatureMap(_every_family(method.N), fitted.domain, pick, fitted.constant)
    return reduce_with(study, chosen).ordinary()


def _entropies(y: jax.Array, xi: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    """``CE(X y / xi, Y)``, temperature by image."""
    logits = jnp.einsum("np,mpc->mnc", images, y) / xi[:, None, None]
    chosen = jnp.take_along_axis(logits, labels[None, :, None], axis=2)[..., 0]
    return jax.nn.logsumexp(logits, axis=2) - chosen


class Watch(eqx.Module):
    """Losses and weights on the way: over a quadrature of temperatures and all images of each level."""

    pool: Pool
    features: jax.Array
    nodes: jax.Array
    shares: jax.Array
    regulariser: jax.Array

    def losses(self, reduced: Bilevel, x: jax.Array, y: jax.Array, xi: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Validation and training loss for classifiers ``y`` at temperatures ``xi``, each by temperature."""
        upper, lower = reduced.upper_source.product.eta, reduced.lower_source.product.eta  # pyright: ignore
        validation = jnp.mean(_entropies(y, xi, upper["image"], upper["label"]), axis=1)
        ridge = self.regulariser * jnp.sum(y**2, axis=(1, 2))
        weighted = jax.nn.sigmoid(x) * _entropies(y, xi, lower["image"], lower["label"])
        return validation, jnp.mean(weighted, axis=1) + ridge

    def __call__(self, state: Any, i: jax.Array) -> dict[str, jax.Array]:
        reduced, y = self.pool[i], jnp.einsum("mk,kpc->mpc", self.features, state.W)
        validation, training = self.losses(reduced, state.x, y, self.nodes)
        return {
            "validation": self.shares @ validation,
            "training": self.shares @ training,
            "weight": jnp.mean(jax.nn.sigmoid(state.x)),
        }


@eqx.filter_jit
def _score(watch: Watch, which: jax.Array, xs: jax.Array, Ws: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Validation and training loss of the averaged answers."""

    def one(item):
        i, x, W = item
        y = jnp.einsum("mk,kpc->mpc", watch.features, W)
        validation, training = watch.losses(watch.pool[i], x, y, watch.nodes)
        return watch.shares @ validation, watch.shares @ training

    return jax.lax.map(one, (which, xs, Ws))


@eqx.filter_jit
def _by_temperature(test: Any, y: jax.Array, xi: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Test loss and test accuracy, by temperature."""
    logits = jnp.einsum("np,mpc->mnc", test["image"], y)
    hits = jnp.argmax(logits, axis=2) == test["label"]
    return jnp.mean(_entropies(y, xi, test["image"], test["label"]), axis=1), jnp.mean(hits, axis=1)


def auc(score: np.ndarray, positive: np.ndarray) -> float:
    """The chance that a random positive has a higher score than a random negative, ties counting half."""
    ranks = scipy.stats.rankdata(score)
    count = int(positive.sum())
    if count in (0, len(positive)):
        return float("nan")
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (len(positive) - count)))


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
        nodes, shares = _looked_at(one)
        fitted = _features_of(_study(one, method), method)
        dtype = fitted.constant.dtype
        cast = lambda a: jnp.asarray(a, dtype)
        ridge = cast(one.problem.lower.regulariser)  # pyright: ignore[reportFunctionMemberAccess]
        return Watch(self.pool(method, seeds), cast(fitted(nodes)), cast(nodes), cast(shares), ridge)

    def judge(self, method, seeds, which, bundle, final):
        watch = self.observe(method, seeds)
        xs, Ws = bundle.states.average.x, bundle.states.average.W
        validation, training = (np.asarray(v, dtype=float) for v in _score(watch, jnp.asarray(which), xs, Ws))
        numbers = {"validation": validation, "training": training}
        if not final:
            return Judged(numbers, {}, validation)
        closer = [self._closely(method, seeds[int(i)], xs[k], Ws[k]) for k, i in enumerate(np.asarray(which))]
        numbers |= {name: np.array([found[0][name] for found in closer]) for name in closer[0][0]}
        curves = {name: np.stack([found[1][name] for found in closer]) for name in closer[0][1]}
        return Judged(numbers, curves, validation)

    def temperatures(self) -> np.ndarray:
        """Where policies are compared with exact classifiers: Gauss nodes, which crowd where policies change most."""
        return np.asarray(_looked_at(self.instance(0))[0])

    def _closely(self, method: Method, seed: int, x: Any, W: Any) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """One answer against exact classifiers: the true ``F``, ``Delta_y``, who was found out, accuracy."""
        one = self.instance(seed)
        nodes, shares = _looked_at(one)
        fitted, dtype = _features_of(_study(one, method), method), W.dtype
        xi, shares = jnp.asarray(nodes, dtype), np.asarray(shares, dtype=float)
        y = jnp.einsum("mk,kpc->mpc", fitted(xi).astype(dtype), W)
        found = one.truth.fit(x, xi, start=y, tolerance=_GRADIENT_LEFT)
        table = {}
        for name, classifiers in (("policy", y), ("exact", found.y)):
            validation = one.train.upper.eta  # pyright: ignore
            loss = jnp.mean(_entropies(classifiers, xi, validation["image"], validation["label"]), axis=1)
            _, accuracy = _by_temperature(one.test.eta, classifiers, xi)
            size = jnp.sqrt(jnp.sum(classifiers**2, axis=(1, 2)))
            table[name] = np.stack([np.asarray(v, dtype=np.float32) for v in (loss, accuracy, size)], axis=1)
        error = np.asarray(jnp.sum((y - found.y) ** 2, axis=(1, 2)), dtype=float)
        numbers = {
            "loss": float(shares @ table["exact"][:, 0]),
            "policy_error": float(shares @ error),
            "size": float(shares @ table["exact"][:, 2] ** 2),
            "accuracy": float(shares @ table["policy"][:, 1]),
            "auc": auc(-np.asarray(x), one.truth.corrupted),
            "weight": float(jnp.mean(jax.nn.sigmoid(x))),
            "exact_gradient": float(jnp.max(found.gradient)),
        }
        return numbers, table | {"error": error.astype(np.float32)}
