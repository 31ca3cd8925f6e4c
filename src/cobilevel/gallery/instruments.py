r"""Instrumental variables: a curve that an unseen cause confounds, found through instruments.

Sales are $Y = h(T) + U$, where whoever set the fare $T$ knew more about $U$ than we do, so $E[U \mid T] \ne 0$ and a
regression of $Y$ on $T$ is wrong. Instruments $Z$ (the price of fuel) move $T$ and nothing else: $E[U \mid Z] = 0$.
Then $E[Y \mid Z] = E[h(T) \mid Z]$, and with a curve $h_x(t) = x \cdot b(t)$
$$\min_x \tfrac12 E (Y - y^\star(x, Z))^2, \qquad
y^\star(x, z) = \arg\min_y \tfrac12 E[(y - h_x(T))^2 \mid Z = z] = E[h_x(T) \mid Z = z]$$
is a contextual bilevel problem whose context is $Z$. With $b(t) = (1, t)$ and a policy linear in $z$ it is two-stage
least squares; with splines it is nonparametric instrumental regression (Newey and Powell, 2003; Petrulionyte, Mairal
and Arbel, 2024, state it as bilevel).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..answer import COLOURS, DOTS, shown_figure, tidy
from ..basis import Features
from ..ground import module_of
from ..problem import Box, Interval, Problem, Samples
from .quadratic import Instance


class Curve(eqx.Module):
    """``b(t)``: a constant, ``t``, and natural cubic splines, straight lines beyond the first and the last knot.

    With two knots it is a straight line.
    """

    knots: Float[np.ndarray, " k"]

    @property
    def size(self) -> int:
        """How many functions there are."""
        return len(self.knots)

    def __call__(self, t: Float[Array | np.ndarray, "*n"]) -> Float[Array, "*n k"]:
        t, k = jnp.asarray(t), jnp.asarray(self.knots, jnp.asarray(t).dtype)
        cubes = jnp.maximum(t[..., None] - k, 0) ** 3
        bent = (cubes[..., :-1] - cubes[..., -1:]) / (k[-1] - k[:-1])
        return jnp.concatenate([jnp.ones_like(t)[..., None], t[..., None], bent[..., :-1] - bent[..., -1:]], axis=-1)


class TwoStage(eqx.Module):
    """Both levels: the outcome's distance to the policy, and the policy's to ``h_x`` of treatment and controls."""

    curve: Curve

    def fit(self, x: Any, y: Any, z: Any, eta: Any) -> Float[Array, ""]:
        """The upper level."""
        return (eta["outcome"] - y) ** 2 / 2

    def predict(self, x: Any, y: Any, z: Any, eta: Any) -> Float[Array, ""]:
        """The lower level, whose solution is the conditional mean of ``h_x(T)``."""
        columns = jnp.concatenate([self.curve(eta["treatment"]), *([eta["controls"]] if "controls" in eta else [])])
        return (y - x @ columns) ** 2 / 2


class Stated(NamedTuple):
    """A problem with its samples, and the `linear` basis of two-stage least squares: 1, instruments, controls; and the
    `curve` that the coefficients belong to."""

    problem: Problem
    samples: Samples
    linear: Features
    curve: Curve


def instrumental(
    frame: Any, outcome: str, treatment: str, instruments: list[str], controls: list[str] | None = None, knots: int = 2
) -> Stated:
    """Columns of a data frame as a bilevel problem; ``x`` has the coefficients of the curve, then of the controls.

    `knots`: the number of knots of the curve, at quantiles of the treatment; 2 for a straight line.
    """
    controls = list(controls or ())
    column = lambda names: np.stack([np.asarray(frame[name], float) for name in names], axis=-1)
    z, t = column([*instruments, *controls]), np.asarray(frame[treatment], float)
    curve = Curve(np.quantile(t, np.linspace(0.05, 0.95, knots)))
    model = TwoStage(curve)
    single = z.shape[1] == 1
    low, high = z.min(axis=0), z.max(axis=0)
    domain = Interval(low[0], high[0]) if single else Box(low, high)
    problem = Problem(model.fit, model.predict, x0=np.zeros(curve.size + len(controls)), y0=0.0, domain=domain)
    eta = {"outcome": np.asarray(frame[outcome], float), "treatment": t}
    eta |= {"controls": column(controls)} if controls else {}
    linear = Features(lambda xi: jnp.concatenate([jnp.ones(1, xi.dtype), jnp.atleast_1d(xi)]), 1 + z.shape[1])
    return Stated(problem, Samples(z[:, 0] if single else z, eta), linear, curve)


@dataclass(frozen=True)
class InstrumentsTruth:
    r"""$T = 4 s (Z - 1/2) + V / 2$ and $Y = h(T) + 1.2 V + e / 2$ $Z$ uniform, $V$, $e$ normal, $s$ the strength."""

    basis: Curve
    strength: float

    def curve(self, t: Any) -> Any:
        """Sales at a fare, all else equal."""
        return 2 + 4 / (1 + module_of(t).exp(2 * module_of(t).asarray(t, float)))

    def treatment(self, z: Any, v: Any) -> Any:
        """The fare at a price of fuel, where demand is unusual by `v`."""
        return 4 * self.strength * (module_of(z).asarray(z, float) - 0.5) + v / 2

    def draw(self, key: Array, z: Array, size: int) -> dict[str, Array]:
        """Fares and sales at one price of fuel: the sampler that ``Problem(conditional=...)`` takes."""
        v, e = jax.random.normal(key, (2, size), z.dtype)
        fare = self.treatment(z, v)
        return {"outcome": self.curve(fare) + 1.2 * v + e / 2, "treatment": fare}

    def _given(self, z: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """At each `z`: nodes of the fare, the mean of sales at them, and the weights of Gauss and Hermite."""
        v, weights = np.polynomial.hermite_e.hermegauss(120)
        t = self.treatment(np.asarray(z, float)[..., None], v)
        return t, self.curve(t) + 1.2 * v, weights / weights.sum()

    def design(self, z: Any) -> np.ndarray:
        """``E[b(T) | Z = z]``."""
        t, _, weights = self._given(z)
        knots = self.basis.knots  # as in ``Curve``, in NumPy
        cubes = np.maximum(t[..., None] - knots, 0) ** 3
        bent = (cubes[..., :-1] - cubes[..., -1:]) / (knots[-1] - knots[:-1])
        table = np.concatenate([np.ones_like(t)[..., None], t[..., None], bent[..., :-1] - bent[..., -1:]], axis=-1)
        return np.einsum("...q,...qk->...k", np.broadcast_to(weights, t.shape), table)

    def policy(self, x: Any, xi: Any) -> np.ndarray:
        """``E[h_x(T) | Z]``."""
        return self.design(xi) @ np.asarray(x, float)

    def _population(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
        """The design on a rule for `z`, the mean of sales there, the weights, and the mean variance of sales."""
        nodes, weights = np.polynomial.legendre.leggauss(60)
        z, weights = (nodes + 1) / 2, weights / 2
        _, sales, given = self._given(z)
        mean = sales @ given
        return self.design(z), mean, weights, float(weights @ (sales**2 @ given - mean**2)) + 0.25

    def objective(self, x: Any) -> float:
        """The population value of the upper level."""
        design, mean, weights, spread = self._population()
        return float(weights @ (mean - design @ np.asarray(x, float)) ** 2 + spread) / 2

    @property
    def x(self) -> np.ndarray:
        """The best coefficients: a weighted least squares problem over `z`."""
        design, mean, weights, _ = self._population()
        root = np.sqrt(weights)
        return np.linalg.lstsq(root[:, None] * design, root * mean, rcond=None)[0]


def instruments(seed: int = 0, train: int = 5000, test: int = 5000, strength: float = 1.0, knots: int = 4) -> Instance:
    """Simulated fares, sales and prices of fuel; the curve of sales over fares is known, and is not a straight line.

    - `strength`: 1 moves fares over the whole curve, 0.05 hardly at all (a weak instrument).
    - `knots`: the number of knots of the splines; 2 for a straight line, which is then misspecified.
    - `seed`: which random table.
    - `train`, `test`: how many rows to solve from, and to judge by.

    **Example:**

    >>> case = cb.gallery.instruments(0, train=200, test=200)
    >>> case.problem.x0.shape
    (4,)
    """
    try:
        import pandas as pd
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("instruments needs pandas: pip install pandas.") from error

    rng = np.random.default_rng(seed)

    def observe(rows):
        z, v, e = rng.uniform(size=rows), rng.normal(size=rows), rng.normal(size=rows)
        fare = law.treatment(z, v)
        return pd.DataFrame({"fuel": z, "fare": fare, "sales": law.curve(fare) + 1.2 * v + e / 2})

    law = InstrumentsTruth(Curve(np.zeros(2)), strength)
    roles = {"outcome": "sales", "treatment": "fare", "instruments": ["fuel"]}
    first = instrumental(observe(train), **roles, knots=knots)
    fresh = instrumental(observe(test), **roles, knots=knots).samples
    problem = eqx.tree_at(lambda p: p.domain, first.problem, Interval(0.0, 1.0))
    return Instance(problem, first.samples, fresh, InstrumentsTruth(first.curve, strength))


def draw_instruments(instance: Instance, solution: Any) -> Any:
    """Left: the curve found, the exact one, and that of plain regression; right: the policy over `z`.

    **Arguments:**

    - `instance`: what ``cb.gallery.instruments`` returned; `solution`: its solution.

    **Returns:** a Matplotlib figure.

    **Example:**

    >>> case = cb.gallery.instruments(0, train=300, test=200, knots=2)
    >>> solution = cb.solve(case.problem, case.train, basis=cb.Chebyshev(3), steps=2)
    >>> figure = cb.gallery.draw_instruments(case, solution)
    >>> len(figure.axes) > 0
    True
    """
    truth, data, figure = instance.truth, instance.train, shown_figure(10, 4.2)
    curve, policy = figure.subplots(1, 2)
    fare, sales, fuel = (np.asarray(v) for v in (data.eta["treatment"], data.eta["outcome"], data.xi))
    span = np.linspace(np.quantile(fare, 0.01), np.quantile(fare, 0.99), 200)
    table = lambda t: np.asarray(truth.basis(jnp.asarray(t)))
    plain = np.linalg.lstsq(table(fare), sales, rcond=None)[0]
    curve.plot(fare[:DOTS], sales[:DOTS], ".", ms=4, mew=0, color="grey", alpha=0.35, label="samples")
    curve.plot(span, table(span) @ plain, color=COLOURS[1], lw=1.5, label="regression of sales on fares")
    curve.plot(span, table(span) @ np.asarray(solution.x), color=COLOURS[0], lw=1.8, label="by instruments")
    curve.plot(span, truth.curve(span), "--", color="black", lw=1.2, label="exact")
    curve.set(xlabel="fare (10 € above usual)", ylabel="sales (1000 seats)", title="What fares do to sales")
    curve.legend(frameon=False, fontsize="small")

    z = np.linspace(0, 1, 200)
    policy.plot(fuel[:DOTS], sales[:DOTS], ".", ms=4, mew=0, color="grey", alpha=0.35)
    policy.plot(z, np.asarray(solution.policy(jnp.asarray(z))), color=COLOURS[0], lw=1.8, label="policy")
    policy.plot(z, truth.policy(solution.x, z), "--", color="black", lw=1.2, label="exact, at the same x")
    policy.set(xlabel="price of fuel (share of its range)", ylabel="sales (1000 seats)", title="Mean sales given fuel")
    policy.legend(frameon=False, fontsize="small")
    tidy(curve, policy)
    return figure
