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

from ...basis.base import FeatureMap
from ...basis.given import Features
from ...gallery import Instance, cleaning
from ...gallery.images import Images
from ...problem.data import Levels, Product
from ...problem.domain import Interval
from ...reduction.batches import Pairs
from ...reduction.reduced import Reduced, reduce
from ...sweep.bundles import How, Pool
from ...sweep.store import Runs
from ..lab import FAMILIES, Budget, Judged, Lab, Method
from ..tuning import Grid, Rung

_TEMPERATURES = (0.1, 10.0)


_NODES = 8  # temperatures at which losses are watched and policies judged, by Gauss quadrature


_CPU, _GPU = (How(1, 1, 1),), (How(20, 4, 1), How(20, 20, 1))


BUDGETS = {
    "quick": Budget(
        instances=3,
        steps=120,
        chunk=12,
        rungs=(Rung(1, 1, 60),),
        grid=Grid((0.1,), (1e2, 1e3), (10,)),
        polynomials=(5,),
        partitions=(5, 20),
        measured=False,
        candidates=_CPU,
    ),
    "default": Budget(
        instances=3,
        steps=240,
        chunk=12,
        rungs=(Rung(1, 1, 60),),
        grid=Grid((1.0, 10.0), (1e4, 1e5), (10,)),  # around what the whole grid gives
        polynomials=(5,),
        partitions=(5, 20),
        measured=False,
        candidates=_CPU,
    ),
    "full": Budget(
        instances=20,
        steps=2000,
        chunk=50,
        rungs=(Rung(20, 1, 50), Rung(5, 1, 200), Rung(1, 1, 600)),
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


def _rule(one: Instance) -> tuple[Any, Any]:
    """The temperatures at which runs are looked at, and their shares."""
    return one.train.upper.contexts.quadrature(_NODES)  # pyright: ignore


def _reduced(one: Instance, method: Method) -> Reduced:
    """The reduced problem, with a rule of temperatures fine enough for the basis (batches draw them afresh anyway)."""
    levels = (Product(level.contexts, level.eta, 4 * method.N) for level in (one.train.upper, one.train.lower))  # pyright: ignore
    return reduce(one.problem, method.basis, Levels(*levels))


def _shared(reduced: Reduced, method: Method) -> Reduced:
    """The same reduced problem, its basis written as a choice among all families."""
    place = list(FAMILIES).index(method.family)
    raw = method.N * len(FAMILIES)
    pick = jnp.eye(raw, dtype=reduced.basis.constant.dtype)[:, place * method.N : (place + 1) * method.N]
    basis = FeatureMap(_every_family(method.N), reduced.basis.domain, pick, reduced.basis.constant)

    def moved(source: Pairs) -> Pairs:
        return replace(source, basis=basis)

    above, below = moved(reduced.upper_source), moved(reduced.lower_source)  # pyright: ignore[reportArgumentType]
    return replace(reduced, basis=basis, upper_source=above, lower_source=below, whitening=None)


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

    def losses(self, reduced: Reduced, x: jax.Array, y: jax.Array, xi: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Validation and training loss for classifiers ``y`` at temperatures ``xi``, each by temperature."""
        above, below = reduced.upper_source.product.eta, reduced.lower_source.product.eta  # pyright: ignore
        validation = jnp.mean(_entropies(y, xi, above["image"], above["label"]), axis=1)
        ridge = reduced.problem.lower.regulariser * jnp.sum(y**2, axis=(1, 2))  # pyright: ignore
        weighted = jax.nn.sigmoid(x) * _entropies(y, xi, below["image"], below["label"])
        return validation, jnp.mean(weighted, axis=1) + ridge

    def __call__(self, answer: tuple, state: Any, i: jax.Array) -> dict[str, jax.Array]:
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
            reduced = [_shared(_reduced(one, method), method) for one in table]
            self._pools = {key: Pool.of(reduced)}
        return self._pools[key]

    def held(self, method):
        pixels, classes = self.instance(0).problem.y0.shape
        return len(self.instance(0).problem.x0) + method.N * pixels * classes

    def observe(self, method, seeds):
        one = self.instance(seeds[0])
        nodes, shares = _rule(one)
        fitted = _reduced(one, method).basis
        dtype = fitted.constant.dtype
        cast = lambda a: jnp.asarray(a, dtype)
        return Watch(self.pool(method, seeds), cast(fitted(nodes)), cast(nodes), cast(shares))

    def judge(self, method, seeds, which, bundle, final):
        watch = self.observe(method, seeds)
        xs, Ws = bundle.states.x_mean, bundle.states.W_mean
        validation, training = (np.asarray(v, dtype=float) for v in _score(watch, jnp.asarray(which), xs, Ws))
        numbers = {"validation": validation, "training": training}
        if not final:
            return Judged(numbers, {}, validation)
        closer = [self._closely(method, seeds[int(i)], xs[k], Ws[k]) for k, i in enumerate(np.asarray(which))]
        numbers |= {name: np.array([told[0][name] for told in closer]) for name in closer[0][0]}
        curves = {name: np.stack([told[1][name] for told in closer]) for name in closer[0][1]}
        return Judged(numbers, curves, validation)

    def temperatures(self) -> np.ndarray:
        """Where policies are held against exact classifiers: Gauss nodes, which crowd where policies change most."""
        return np.asarray(_rule(self.instance(0))[0])

    def _closely(self, method: Method, seed: int, x: Any, W: Any) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """One answer against exact classifiers: the true ``F``, ``Delta_y``, who was found out, accuracy."""
        one = self.instance(seed)
        nodes, shares = _rule(one)
        fitted, dtype = _reduced(one, method).basis, W.dtype
        xi, shares = jnp.asarray(nodes, dtype), np.asarray(shares, dtype=float)
        y = jnp.einsum("mk,kpc->mpc", fitted(xi).astype(dtype), W)
        found = one.truth.fit(x, xi, start=y, tolerance=1e-4)
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
