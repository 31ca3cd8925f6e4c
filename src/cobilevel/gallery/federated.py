r"""Personalised federated learning: clients keep their own models near a shared one, chosen where it helps them most.

The context is the client $c$, one of finitely many. Client $c$ fits its model $y$ to its own rows $(z, t)$, which are
few for some clients, with a pull of strength $\lambda$ towards the shared model $\theta$ (T. Li et al., Ditto: fair and
robust federated learning through personalization, ICML 2021):
$$y_c^\star(\theta, \lambda) = \arg\min_y E_{local}[\tfrac12 (t - z^T y)^2 | c] + \tfrac{\lambda}{2} |y - \theta|^2,$$
$$\min_{\theta, \lambda} \; E_{held\ out}\, \tfrac12 (t - z^T y_c^\star(\theta, \lambda))^2.$$
The levels see different rows, so that a model that overfits its few rows is penalised. The decision is
$x = (\theta, \log \lambda)$. With $Z_c$ and $b_c$ the moments of the local rows,
$y_c^\star = (Z_c + \lambda I)^{-1} (b_c + \lambda \theta)$: everything is known exactly for the given rows.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ..answer import COLOURS, shown_figure, tidy
from ..problem import Finite, Levels, Problem, Samples
from .quadratic import Instance

PULLS = (-6.0, 6.0)  # between which the logarithm of the pull is kept


def client(x, model, name, eta):
    """The lower level: the squares of the client's own rows, and the pull towards the shared model."""
    pull = jnp.exp(x["log_pull"]) / 2 * jnp.sum((model - x["shared"]) ** 2)
    return (eta["target"] - eta["inputs"] @ model) ** 2 / 2 + pull


def held_out(x, model, name, eta):
    """The upper level: the squares of rows that the client did not learn from."""
    return (eta["target"] - eta["inputs"] @ model) ** 2 / 2


class Moments:
    """What the squares of a level's rows depend on, client by client."""

    def __init__(self, samples: Samples, names: list[str]):
        code = np.searchsorted(names, np.asarray(samples.xi))
        z, t = (np.asarray(samples.eta[key], float) for key in ("inputs", "target"))
        here = (code == np.arange(len(names))[:, None]).astype(float)
        self.count = here.sum(axis=1)
        share = here / np.maximum(self.count, 1)[:, None]
        self.square = np.einsum("cn,na,nb->cab", share, z, z)
        self.cross, self.total = np.einsum("cn,na,n->ca", share, z, t), share @ t**2

    def loss(self, models: Float[np.ndarray, "c p"]) -> float:
        """Half the mean square over all rows of the level, each client with its model."""
        bent = np.einsum("ca,cab,cb->c", models, self.square, models)
        each = self.total - 2 * np.sum(self.cross * models, axis=1) + bent
        return float(self.count @ each / (2 * self.count.sum()))


@dataclass(frozen=True)
class FederatedTruth:
    """Models by the normal equations of each client; the best decision by L-BFGS on them, from several pulls.

    `objective` is the held-out loss on the given rows, `true_loss` the expected loss.
    """

    names: list[str]
    local: Moments
    validation: Moments
    models: Float[np.ndarray, "c p"]
    noise: float
    x: Any = None

    def policy(self, x: Any, names: Any = None) -> Float[np.ndarray, "c p"]:
        """The models of these clients, of all where none are named."""
        pull, shared = np.exp(float(x["log_pull"])), np.asarray(x["shared"], float)
        matrix = self.local.square + pull * np.eye(len(shared))
        solved = np.linalg.solve(matrix, (self.local.cross + pull * shared)[..., None])[..., 0]
        return solved if names is None else solved[np.searchsorted(self.names, np.asarray(names))]

    def objective(self, x: Any) -> float:
        """The loss of rows held out."""
        return self.validation.loss(self.policy(x))

    def true_loss(self, models: Float[np.ndarray, "c p"]) -> Float[np.ndarray, " c"]:
        """Half the mean square of each client's prediction on endless rows, whose inputs are standard normal."""
        return (np.sum((models - self.models) ** 2, axis=1) + self.noise**2) / 2

    def solved(self) -> "FederatedTruth":
        """With the best decision for the given rows."""
        from scipy.optimize import minimize  # takes long to import

        unpack = lambda v: {"shared": v[:-1], "log_pull": v[-1]}
        value, middle = lambda v: self.objective(unpack(v)), self.local.square.shape[-1] * [0.0]
        bounds = [(None, None)] * len(middle) + [PULLS]
        starts = ([*middle, pull] for pull in np.linspace(*PULLS, 5))
        runs = [minimize(value, start, bounds=bounds, options={"ftol": 1e-13, "gtol": 1e-8}) for start in starts]
        return replace(self, x=unpack(min(runs, key=lambda run: run.fun).x))


def federated(seed: int = 0, clients: int = 24, inputs: int = 4, noise: float = 1.0, spread: float = 0.4) -> Instance:
    """Clients whose true models lie around a common one; each has 5 to 60 rows to learn from, and 40 held out.

    `train` and `test` differ in the held-out rows; the rows that clients learn from are the same.

    **Arguments:**

    - `seed`: which random clients.
    - `clients`, `inputs`: how many clients, and how many inputs a model takes.
    - `noise`: the standard deviation of labels.
    - `spread`: the standard deviation of models around the common one.

    **Example:**

    >>> case = cb.gallery.federated(0, clients=6)
    >>> case.train.lower.count > 0
    True
    """
    rng = np.random.default_rng(seed)
    names = [f"client {k:02d}" for k in range(clients)]
    common = rng.normal(size=inputs)
    models = common + spread * rng.normal(size=(clients, inputs))

    def rows(counts):
        code = np.repeat(np.arange(clients), counts)
        z = rng.normal(size=(len(code), inputs))
        target = np.sum(z * models[code], axis=1) + noise * rng.normal(size=len(code))
        return Samples(np.array(names)[code], {"inputs": z, "target": target})

    local, validation, test = (rows(count) for count in (rng.integers(5, 61, clients), 40, 200))
    problem = Problem(
        upper=held_out,
        lower=client,
        x0={"shared": jnp.zeros(inputs), "log_pull": jnp.asarray(0.0)},
        y0=jnp.zeros(inputs),
        domain=Finite(names),
        x_bounds=({"shared": None, "log_pull": PULLS[0]}, {"shared": None, "log_pull": PULLS[1]}),
    )
    truth = FederatedTruth(names, Moments(local, names), Moments(validation, names), models, noise).solved()
    return Instance(problem, Levels(upper=validation, lower=local), Levels(upper=test, lower=local), truth)


def draw_federated(instance: Instance, solution: Any) -> Any:
    """The clients' expected loss: alone, with the shared model, and with their own near it; and the loss by pull.

    **Arguments:**

    - `instance`: what ``cb.gallery.federated`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.federated(0, clients=6)
    >>> solution = cb.solve(case.problem, case.train, steps=2)
    >>> figure = cb.gallery.draw_federated(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    truth = instance.truth
    rows, learned = truth.local.count, truth.true_loss(np.asarray(solution.policy(np.array(truth.names))))
    shared = np.asarray(solution.x["shared"], float)
    alone = truth.true_loss(truth.policy({"shared": shared, "log_pull": -np.inf}))
    together = truth.true_loss(np.broadcast_to(shared, truth.models.shape))
    figure = shown_figure(10, 4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    shown = ((alone, "^", "alone"), (together, "s", "shared model"), (learned, "o", "own model near the shared one"))
    for (loss, mark, name), colour in zip(shown, (COLOURS[4], COLOURS[3], COLOURS[0]), strict=True):
        left.plot(rows, loss, mark, color=colour, ms=6, alpha=0.9, label=name)
    left.axhline(truth.noise**2 / 2, color="black", ls="--", lw=1, label="least possible")
    left.set(xlabel="rows of the client's own", ylabel="loss on fresh rows", yscale="log")
    left.set_yticks(ticks := (0.5, 0.7, 1.0, 1.5, 2.0, 2.5), list(map(str, ticks)))
    left.set_yticks([], minor=True)
    left.legend(frameon=False)
    grid = np.linspace(*PULLS, 80)
    curve = [truth.objective({"shared": shared, "log_pull": pull}) for pull in grid]
    right.plot(np.exp(grid), curve, color=COLOURS[5], ls="--", label="exact models of every client")
    right.plot(np.exp(float(solution.x["log_pull"])), truth.objective(solution.x), "o", color=COLOURS[1], label="found")
    low, high = np.exp(np.clip([float(side["log_pull"]) for side in solution.interval], *PULLS))
    right.axvspan(low, high, color=COLOURS[1], alpha=0.12, lw=0, label="95% interval of the pull")
    right.set(xscale="log", xlabel="pull towards the shared model", ylabel="loss on rows held out")
    right.legend(frameon=False)
    tidy(left, right)
    return figure
