"""The cleaning experiment: weights for training images with wrong labels, over a range of temperatures.

Printed in the paper: 19,000 training and 1,000 validation images of MNIST, labels redrawn with probability 0.3,
temperatures uniform on (0.1, 10), a linear classifier with ridge 1e-3, batches of 512, ``K = 10`` factors of scale
``s = 1e-2``, the grid of step sizes, 20 trials. Not printed, and chosen here: the number of steps, a start at weights
1/2 and classifiers 0, moving averages over a tenth of a run. Step sizes are chosen, and methods judged, by moving
averages of the losses along the iterates, as the paper shows them; averaged answers are judged too.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..basis import FeatureMap, Features
from ..gallery import Images, Instance, best_coefficients, cleaning, entropies
from ..judge import runs_estimate
from ..problem import Interval, Levels, Product, Stratified
from ..reduction import Bilevel, reduce_with
from ..report import line_part, panel_part, policies_part, rounded, table_part
from ..study import Study
from ..sweep import Runs, stacked, taken
from .claims import auc
from .cleaning_claims import LOSSES, cleaning_verdicts, moving_average, relative_errors
from .experiment import Experiment
from .methods import FAMILIES, HELD_OUT, OWN, Budget, Grid, Method, SearchRung, family_name

_KINDS = list(dict.fromkeys(FAMILIES.values()))

_QUICK = Budget(
    instances=3, steps=120, chunk=12, rungs=(SearchRung(1, 1, 60),), grid=Grid((0.1,), (1e2, 1e3), (10,)),
    bases=(5,), cells=(5, 20), together=1,
)  # fmt: skip
CLEANING_BUDGETS = {
    "quick": _QUICK,
    "default": replace(_QUICK, steps=240, grid=Grid((1.0, 10.0), (1e4, 1e5), (10,))),  # around what the whole one gives
    "full": Budget(
        instances=20, steps=12_000, chunk=100, grid=Grid(), bases=(5, 20), cells=(5, 20, 50), bare=(5,),
        rungs=(SearchRung(20, 1, 100), SearchRung(2, 1, 1000), SearchRung(1, 1, 12_000)),
        further=(SearchRung(2, 1, 1000), SearchRung(1, 1, 12_000)), extended=4,
        together=20,  # twenty at once took a third to a ninth of the time of fewer
    ),
}  # fmt: skip


@cache
def _every_family(N: int) -> Features:
    """All families of one size side by side: a matrix picks one of them, so that they share compiled programs."""
    domain, some = Interval(0.1, 10.0), jnp.linspace(0.1, 10.0, 2 * N + 2)
    fitted = [kind(N).fit(domain, some, None) for kind in _KINDS]
    return Features(lambda xi: jnp.concatenate([each(xi) for each in fitted], axis=-1), N * len(fitted))


def _nodes(one: Instance, count: int = 32) -> tuple[jax.Array, jax.Array]:
    """Temperatures by Gauss quadrature, and their shares: those at which losses are watched and policies judged."""
    return one.train.upper.law.quadrature(count)


def _study(one: Instance, method: Method) -> Study:
    """The problem with a rule of temperatures that is fine enough for the basis (batches draw them afresh anyway)."""
    levels = one.train.upper, one.train.lower
    law = (lambda given: Stratified(given.domain, method.N)) if method.family == OWN else (lambda given: given)
    return Study.of(one.problem, Levels(*(Product(law(level.law), level.eta, 4 * method.N) for level in levels)))


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
    return entropies(logits, jnp.broadcast_to(data["label"], logits.shape[:2]))


class Watch(eqx.Module):
    """Losses and weights on the way: over a quadrature of temperatures and all images of each level."""

    problems: Any  # stacked
    features: jax.Array
    nodes: jax.Array
    shares: jax.Array
    regulariser: jax.Array

    def losses(self, i: jax.Array, x: jax.Array, W: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Validation and training loss of a decision and its policy on instance ``i``."""
        reduced, y = taken(self.problems, i), jnp.einsum("mk,kpc->mpc", self.features, W)
        upper, lower = reduced.upper_source.eta, reduced.lower_source.eta
        validation = jnp.mean(_entropies(y, self.nodes, upper), axis=1)
        ridge = self.regulariser * jnp.sum(y**2, axis=(1, 2))
        weighted = jax.nn.sigmoid(x) * _entropies(y, self.nodes, lower)
        return self.shares @ validation, self.shares @ (jnp.mean(weighted, axis=1) + ridge)

    def __call__(self, state: Any, i: jax.Array) -> dict[str, jax.Array]:
        validation, training = self.losses(i, state.x, state.W)
        return {"validation": validation, "training": training, "weight": jnp.mean(jax.nn.sigmoid(state.x))}


@eqx.filter_jit
def _losses(watch: Watch, which: jax.Array, xs: jax.Array, Ws: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Validation and training loss of the averaged answers."""
    return jax.lax.map(lambda item: watch.losses(*item), (which, xs, Ws))


class Cleaning(Experiment):
    """Hyper-cleaning of images."""

    name = "cleaning"
    title = "Hyper-cleaning over temperatures"
    unit = "trial"
    scale = 1e-2
    shuffle = False  # independent draws: contexts are drawn afresh in any case, and permutations are slow on a GPU

    def __init__(self, budget: Budget, runs: Runs, images: Images):
        super().__init__(budget, runs)
        self.images = images
        self._instances: dict[int, Instance] = {}
        self._problems: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """As it goes to another process: without what can be made again."""
        return self.__dict__ | {"_instances": {}, "_problems": {}}

    def identity(self):
        return super().identity() | {"data": self.images.name}

    def instance(self, seed: int) -> Instance:
        return self._instances.get(seed) or self._instances.setdefault(seed, cleaning(seed, self.images))

    def plan(self):
        batch = min(512, len(self.instance(0).problem.x0) // 2)
        return [(Method("StocBiO", *row, batch=batch), self.budget.instances) for row in self.budget.table()]

    def problems(self, method, seeds):
        """Of a method; only the last ones are kept, since they hold the images of every trial."""
        key = (method, tuple(seeds))
        if key not in self._problems:
            most = max(rung.instances for rung in self.budget.rungs)  # filled up, so that rounds share programs
            some = [self.instance(seeds[k % len(seeds)]) for k in range(max(len(seeds), most))]
            self._problems = {key: stacked([_shared(one, method) for one in some])}
        return self._problems[key]

    def held(self, method):
        pixels, classes = self.instance(0).problem.y0.shape
        return len(self.instance(0).problem.x0) + method.N * pixels * classes

    def observe(self, method, seeds):
        one = self.instance(seeds[0])
        fitted, (nodes, shares) = method.features(_study(one, method)), _nodes(one)
        parts = (fitted(nodes), nodes, shares, one.problem.lower.regulariser)
        return Watch(self.problems(method, seeds), *(jnp.asarray(part, fitted.constant.dtype) for part in parts))

    def score(self, numbers):
        return numbers["validation"]

    def judge(self, method, seeds, which, xs, Ws, seen, final):
        numbers = {name: moving_average(seen[name].astype(float))[:, -1] for name in LOSSES}
        if not final:
            return numbers, {}
        averaged = _losses(self.observe(method, seeds), jnp.asarray(which), xs, Ws)
        numbers |= {f"{name}_averaged": np.asarray(v, dtype=float) for name, v in zip(LOSSES, averaged, strict=True)}
        closer = [self._closely(method, seeds[int(i)], xs[k], Ws[k]) for k, i in enumerate(np.asarray(which))]
        numbers |= {name: np.array([one[name] for one, _ in closer]) for name in closer[0][0]}
        return numbers, {name: np.stack([one[name] for _, one in closer]) for name in closer[0][1]}

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
            loss = jnp.mean(_entropies(y, xi, one.train.upper.eta), axis=1)
            hits = jnp.argmax(jnp.einsum("np,mpc->mnc", one.test.eta["image"], y), axis=2) == one.test.eta["label"]
            parts = (loss, jnp.mean(hits, axis=1), jnp.sqrt(jnp.sum(y**2, axis=(1, 2))))
            table[name] = np.stack([np.asarray(v, dtype=np.float32) for v in parts], axis=1)
        error, within = errors(policy(W)), np.full(len(xi), np.nan)
        if seed < in_span:
            truth, ridge = one.truth, jnp.asarray(one.problem.lower.regulariser, dtype)
            rule, shared = (jnp.asarray(a, dtype) for a in _nodes(one, 4 * method.N))
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

    # -- what the finished runs say

    def steps(self, method: Method, tuned: str = HELD_OUT) -> np.ndarray:
        """The steps at which curves were looked at."""
        chunk = self.chunk(self.finished(method, tuned)[0].result["inner_steps"])
        return (np.arange(self.by_temperature(method, "validation", tuned).shape[1]) + 1) * chunk

    def samples(self, method: Method, tuned: str = HELD_OUT) -> np.ndarray:
        """Every sample drawn until then, by all oracles."""
        spent = self.values(method, "samples", tuned).mean() / self.values(method, "steps", tuned).mean()
        return self.steps(method, tuned) * spent

    def curve(self, method: Method, name: str, tuned: str = HELD_OUT) -> Float[np.ndarray, "trials looks"]:
        """A moving average over the last tenth of the run before each look."""
        return moving_average(self.by_temperature(method, name, tuned))

    def by_temperature(self, method: Method, name: str, tuned: str = HELD_OUT) -> Float[np.ndarray, "trials ..."]:
        """A curve as it is, trial by trial."""
        return np.array([run.curves[name] for run in self.finished(method, tuned)], dtype=float)

    def summary(self) -> dict[str, Any]:
        """What the page shows: the paper's Figure 2; the same against seconds; weights; errors by temperature."""
        one, images = self.instance(0), self.images.name
        train, validation = len(one.problem.x0), one.train.upper.count
        lead = (
            f"Weights for {train:,} training images ({images}), 30% of whose labels were redrawn at "
            f"random, learned from {validation:,} clean ones over temperatures from 0.1 to 10. "
            f"{self.budget.instances} trials a method, StocBiO with the constants the paper prints."
        )
        clock = lambda m: self.steps(m) * self.seconds(m) / self.steps(m)[-1]
        epochs = ("epochs", "epochs: all samples drawn, over the training images", lambda m: self.samples(m) / train)
        seconds = ("seconds", "seconds a run, trials sharing the machine", clock)
        figure = "Figure 2: hyper-cleaning"
        panels = [
            *(self._panel(name, epochs, figure, f"{name.capitalize()} loss", "loss") for name in LOSSES),
            self._panel("weight", epochs, "Weights, and time", "Mean weight", "mean of sigmoid(x)"),
            self._panel("validation", seconds, "Weights, and time", "Validation loss by seconds", "loss"),
            self._errors_by_temperature("error", "Of the policies found"),
            self._errors_by_temperature("within", "Of the best policy in the span"),
        ]
        data = ["data", f"{images}: {train} training, {validation} validation images"]
        parts = {"panels": panels, "tables": self._tables(), "policies": self._policies()}
        return self.page(lead, data, f"batches of {self.methods[0].batch}, K = 10, s = 0.01", **parts)

    def _tables(self) -> list[dict[str, Any]]:
        """Every method in numbers, and the step sizes that were chosen."""
        names = (*LOSSES, *(f"{loss}_averaged" for loss in LOSSES), "loss", "policy_error", "weight", "auc", "accuracy")
        columns = ["method", "validation loss", "training loss", "validation, averaged answer",
                   "training, averaged answer", "true F", "Delta_y", "mean weight", "AUC", "test accuracy", "diverged",
                   "numbers held", "seconds a run"]  # fmt: skip
        rows = []
        for method in self.methods:
            spread = [runs_estimate(self.values(method, name)).words(4) for name in names]
            diverged = int(self.values(method, "diverged").sum())
            rows.append([method.label, *spread, diverged, self.held(method), f"{self.seconds(method):.2g}"])
        note = (
            "Losses are moving averages along the iterates where the runs end, and those of averaged answers; means "
            "over trials with 95% intervals. Of averaged answers also true F and Delta_y (lower level solved exactly "
            "at 32 temperatures), AUC (how well small weights indicate wrong labels) and accuracy."
        )
        return [
            table_part("methods", "Hyper-cleaning: every method", columns, rows, note),
            self.step_sizes([(method.label, method) for method in self.methods], "validation"),
        ]

    def _policies(self) -> dict[str, Any]:
        """Losses, accuracies and sizes by temperature, of the policy and of exact classifiers; the first trial."""
        entries = []
        for method in self.methods:
            policy, exact, error = (self.by_temperature(method, name)[0] for name in ("policy", "exact", "error"))
            known = (family_name(method.family), method.N, method.solver)
            entries.append((*known, policy.T, exact.T, np.sqrt(error)))
        components = ["validation loss", "test accuracy", "norm of y"]
        return policies_part("temperature", np.asarray(_nodes(self.instance(0))[0]), "classifier", components, entries)

    def _panel(
        self, name: str, axis: tuple[str, str, Callable[[Method], np.ndarray]], figure: str, title: str, label: str
    ) -> dict[str, Any]:
        """One panel of curves over the run, against an axis given by its name, its label and its values."""
        key, words, x = axis
        series = [_means(m, x(m), self.curve(m, name)) for m in self.methods]
        note = "Moving averages over 10% of a run; means over trials with 95% intervals."
        return panel_part(f"{name}-{key}", figure, title, (words, label), ("linear", "linear"), series, note)

    def _errors_by_temperature(self, name: str, title: str) -> dict[str, Any]:
        """Where each method errs, relative to the size of the exact classifiers; or the best policy in its span."""
        xi, axes = np.asarray(_nodes(self.instance(0))[0]), ("temperature", "|y - y*|^2 / |y*|^2")
        series = [_means(m, xi, relative_errors(self, m, name, HELD_OUT)) for m in self.methods]
        note = "Against exact classifiers at the same weights; means over trials with 95% intervals."
        figure = "Error of the policy by temperature"
        return panel_part(f"by-temperature-{name}", figure, title, axes, ("log", "log"), series, note)

    def verdicts(self) -> list[dict[str, Any]]:
        """H1 to H6."""
        return cleaning_verdicts(self)


def _means(method: Method, x: np.ndarray, values: Float[np.ndarray, "trials x"]) -> dict[str, Any]:
    """Means over trials with their intervals, as one series of a panel."""
    return line_part(method.label, rounded(x, 5), [runs_estimate(column) for column in values.T], 5)
