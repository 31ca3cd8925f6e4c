"""How long is it to an answer of given quality? Seconds to a gap of 1% and of 0.1%, warm and from a fresh process.

The problem is that of two roads, 1000 samples, several instances. The gap of capacities ``x`` is ``(F(x) - F*) / F*``:
``F`` is the mean distance of the exact flows, in closed form, to the flows of these samples, and ``F*`` its minimum by
L-BFGS-B from two starts. All that a method is given is the samples and the two objectives, written below in plain JAX;
all compute in double precision, from the same start, and within the same bounds.

- ``Newton, basis``: ``cb.solve`` with ``Chebyshev(10)``; ``Newton``: with nothing given. The whole call counts, to its
  own end, since it has no answer before.
- ``StocBiO, tuned``: with that basis made orthonormal. Step sizes and terms of its series are the best of a grid
  (TUNING), by the gap of the first instance; then it runs for as few steps as the target takes (of LADDER). Tuning is
  timed apart.
- ``optimistix``: the lower level minimised at each of the 1000 contexts by its BFGS, from the solution before; the
  gradient by its implicit differentiation; L-BFGS-B on top.
- ``scipy``: L-BFGS-B on the reduced problem of Chebyshev(10) written by hand: a Newton method for the coefficients,
  the gradient by the implicit function theorem.

L-BFGS-B gets stuck at kinks: it starts again where it stopped, while that helps. Those with it on top count until the
first point that is good enough, although they could not know that it is. Fresh is everything from the start of the
process, with imports and compilation; warm is the same call once more. Medians over instances are shown. On a machine
that is shared, ``--cpu`` counts seconds of the processor.
"""

import itertools
import json
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp

FUNCTIONS = 10
START, BOUNDS = (0.5, 0.5), (0.05, 3.0)
TARGETS = {"1%": 1e-2, "0.1%": 1e-3}
STUCK = 1e-6  # of the objective: L-BFGS-B does not start again where it gained less
TUNING = {"inner": (5e-4, 1e-3, 2e-3), "outer": (1e-2, 3e-2, 1e-1), "terms": (30, 100)}
TUNING_STEPS = 500
LADDER = tuple(25 * 2**k for k in range(9))  # steps of StocBiO, up to 6400

Clock = Callable[[], float]
Points = list[tuple[float, np.ndarray]]  # those a run passed, each with its time


def upper(x, y, xi, eta):
    """The distance of flows to those observed, with gradient 0 where they agree."""
    squares = jnp.sum((y - eta) ** 2)
    return jnp.where(squares > 0, jnp.sqrt(jnp.where(squares > 0, squares, 1)), 0)


def lower(free_time):
    """Beckmann's potential of two roads, with missing demand and negative flows penalised."""

    def g(x, y, xi, eta):
        flow = jnp.maximum(y, 0)
        potential = jnp.sum(free_time * (y + flow * (flow / x) ** 4 / 5))
        return potential + 100 * jnp.maximum(xi - jnp.sum(y), 0) ** 2 + 50 * jnp.sum(jnp.minimum(y, 0) ** 2)

    return g


def library(data: dict, clock: Clock, basis: bool = True) -> Callable[[Any], Points]:
    """``cb.solve``: by StocBiO where settings are given, else by Newton."""
    import cobilevel as cb

    g, start = lower(data["free_time"]), np.array(START)
    problem = cb.Problem(upper, g, x0=start, y0=np.zeros(2), domain=cb.Interval(0.0, 1.0), x_bounds=BOUNDS)
    samples, functions = cb.Samples(data["xi"], data["eta"]), cb.Chebyshev(FUNCTIONS)

    def call(settings):
        if settings is None:
            found = cb.solve(problem, samples, functions) if basis else cb.solve(problem, samples)
        else:
            solver = cb.StocBiO(**{name: settings[name] for name in TUNING})
            found = cb.solve(problem, samples, cb.Orthonormal(functions), solver, settings["steps"])
        return [(clock(), np.asarray(found.x))]

    return call


def descended(value_and_slope: Callable, held: Any, clock: Clock) -> Points:
    """L-BFGS-B, and every point it asked for; `value_and_slope(x, held)` also returns what the next call is handed."""
    from scipy.optimize import minimize

    points: Points = []
    x, value, before = np.array(START), np.inf, np.inf

    def ask(x):
        nonlocal held
        value, slope, held = value_and_slope(x, held)
        value, slope = float(value), np.asarray(slope)
        points.append((clock(), x.copy()))
        return value, slope

    while not before - value < STUCK * abs(value):
        end = minimize(ask, x, jac=True, method="L-BFGS-B", bounds=[BOUNDS] * 2, options={"gtol": 1e-9})
        x, value, before = end.x, end.fun, value
    return points


def optimistix(data: dict, clock: Clock) -> Callable[[Any], Points]:
    """Implicit differentiation context by context."""
    import optimistix as optx

    g = lower(jnp.asarray(data["free_time"]))
    xi, eta = jnp.asarray(data["xi"]), jnp.asarray(data["eta"])
    solver = optx.BFGS(rtol=1e-8, atol=1e-8)

    def flows(x, demand, start):
        return optx.minimise(lambda y, x: g(x, y, demand, None), solver, start, args=x, max_steps=1000).value

    def loss(x, start):
        y = jax.vmap(flows, (None, 0, 0))(x, xi, start)
        return jnp.mean(jax.vmap(upper, (None, 0, 0, 0))(x, y, xi, eta)), y

    both = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def value_and_slope(x, held):
        (value, y), slope = both(x, held)
        return value, slope, y

    first = jnp.repeat(xi[:, None], 2, axis=1) / 2
    return lambda _: descended(value_and_slope, first, clock)


def by_hand(data: dict, clock: Clock) -> Callable[[Any], Points]:
    """The reduced problem: features times coefficients."""
    g = lower(jnp.asarray(data["free_time"]))
    xi, eta = jnp.asarray(data["xi"]), jnp.asarray(data["eta"])
    phi = jnp.asarray(np.polynomial.chebyshev.chebvander(2 * data["xi"] - 1, FUNCTIONS - 1))
    mean = lambda function, x, W: jnp.mean(
        jax.vmap(function, (None, 0, 0, 0))(x, phi @ W.reshape(FUNCTIONS, 2), xi, eta)
    )
    objective = lambda x, W: mean(g, x, W)

    def minimiser(x, W):
        """Newton's method with backtracking."""
        slope, bend = jax.grad(objective, 1), jax.hessian(objective, 1)

        def step(carry):
            W, _, count = carry
            d = -jnp.linalg.solve(bend(x, W) + 1e-12 * jnp.eye(len(W)), slope(x, W))
            value, fall = objective(x, W), slope(x, W) @ d
            rises = lambda t: (objective(x, W + t * d) > value + 1e-4 * t * fall) & (t > 1e-10)
            t = jax.lax.while_loop(rises, lambda t: t / 2, jnp.ones(()))
            return W + t * d, jnp.linalg.norm(slope(x, W + t * d)), count + 1

        unfinished = lambda carry: (carry[1] > 1e-9) & (carry[2] < 100)
        return jax.lax.while_loop(unfinished, step, (W, jnp.inf, 0))[0]

    @jax.jit
    def value_and_slope(x, held):
        W = minimiser(x, held)
        value, (d1, d2) = jax.value_and_grad(lambda x, W: mean(upper, x, W), (0, 1))(x, W)
        v = jnp.linalg.solve(jax.hessian(objective, 1)(x, W), d2)
        return value, d1 - jax.grad(lambda x: jax.grad(objective, 1)(x, W) @ v)(x), W

    return lambda _: descended(value_and_slope, jnp.zeros(2 * FUNCTIONS), clock)


METHODS = {
    "Newton, basis": library,
    "Newton": lambda data, clock: library(data, clock, basis=False),
    "StocBiO, tuned": library,
    "optimistix": optimistix,
    "scipy": by_hand,
}
OURS = ("Newton, basis", "Newton")


def in_this_process(name: str, data: Path, cpu: bool, began: float, settings: list) -> None:
    """Runs a method with each of the settings in turn, and prints the points passed, with seconds."""
    clock = time.process_time if cpu else time.time
    with np.load(data) as held:
        call = METHODS[name](dict(held), clock)
    runs, start = [], 0.0 if cpu else began
    for chosen in settings:
        runs.append([(at - start, x.tolist()) for at, x in call(chosen)])
        start = clock()
    print(json.dumps(runs))


class Judge:
    """One instance: runs methods on it in processes of their own, and says how good what they found is."""

    def __init__(self, seed: int, folder: Path, cpu: bool):
        from cobilevel import gallery

        instance = gallery.two_edge_traffic(seed)
        truth, train = instance.truth, instance.train
        self.loss = jax.jit(lambda x: truth.loss(x, train))
        self.least = float(self.loss(truth.sample_optimum(train)))
        self.data, self.cpu = folder / f"{seed}.npz", cpu
        np.savez(self.data, xi=train.xi, eta=train.eta, free_time=truth.lower.free_time)

    def runs(self, name: str, settings: list) -> list[list[tuple[float, float]]]:
        """The runs of one process, one for each of the settings: seconds since it began, and gaps."""
        given = ["--method", name, "--data", str(self.data), "--settings", json.dumps(settings)]
        given += ["--began", str(time.time()), *(["--cpu"] if self.cpu else [])]
        gap = lambda x: float(self.loss(np.array(x))) / self.least - 1
        return [[(at, gap(x)) for at, x in run] for run in harness.in_own_process(__file__, *given)]

    def ladder(self, settings: dict) -> dict[str, dict | None]:
        """For each target the settings with as few steps as reach it; ``None`` where none do."""
        rungs = [settings | {"steps": steps} for steps in LADDER]
        ends = [run[-1][1] for run in self.runs("StocBiO, tuned", rungs)]
        first = lambda target: next((one for one, end in zip(rungs, ends, strict=True) if end <= target), None)
        return {word: first(target) for word, target in TARGETS.items()}


def tuned(judge: Judge) -> dict:
    """The settings of StocBiO that lead closest, of the grid."""
    grid = [dict(zip(TUNING, values, strict=True)) for values in itertools.product(*TUNING.values())]
    tried = judge.runs("StocBiO, tuned", [one | {"steps": TUNING_STEPS} for one in grid])
    gaps, seconds = [run[-1][1] for run in tried], sum(run[-1][0] for run in tried)
    best = grid[int(np.nanargmin(gaps))]
    print(
        f"StocBiO: {len(grid)} settings of {TUNING_STEPS} steps tried in {seconds:.1f} s, gap {min(gaps):.1e}: {best}"
    )
    return best


def seconds_to(judge: Judge, name: str, best: dict | None) -> dict[str, list[float]]:
    """Seconds to each target, fresh and warm; infinite where it is not reached. `best` are the settings of StocBiO."""
    reached = lambda run, target: next((at for at, gap in run if gap <= target), np.inf)
    if best is None:
        runs = judge.runs(name, [None, None])
        return {word: [reached(run, target) for run in runs] for word, target in TARGETS.items()}
    found = {}
    for word, settings in judge.ladder(best).items():
        runs = [] if settings is None else judge.runs(name, [settings, settings])
        found[word] = [reached(run, TARGETS[word]) for run in runs] or [np.inf, np.inf]
    return found


def table(judges: list[Judge], names: list[str]) -> dict[str, dict[str, list[float | None]]]:
    """Measures and prints; returns median seconds by method and target, fresh and warm."""
    best = tuned(judges[0]) if "StocBiO, tuned" in names else None
    print(f"{'':<16}" + "".join(f"{f'{word} {state}':>14}" for word in TARGETS for state in ("fresh", "warm")))
    found = {}
    for name in names:
        each = [seconds_to(judge, name, best if name.startswith("StocBiO") else None) for judge in judges]
        middle = {word: np.median([one[word] for one in each], axis=0) for word in TARGETS}
        missed = {word: sum(np.isinf(one[word][0]) for one in each) for word in TARGETS}
        words = "".join(f"  {word} missed on {n} of {len(judges)}" for word, n in missed.items() if n)
        print(f"{name:<16}" + "".join(f"{s:>12.3f} s" for pair in middle.values() for s in pair) + words, flush=True)
        found[name] = {word: [float(s) if np.isfinite(s) else None for s in pair] for word, pair in middle.items()}
    return found


def entries(found: dict[str, dict[str, list[float | None]]]) -> list[dict]:
    """The measurements; the goal of each of ours is the best of the others at the same."""
    lines = []
    for (name, seconds), word in itertools.product(found.items(), TARGETS):
        for k, state in enumerate(("fresh", "warm")):
            others = [s for other in found if other not in OURS if (s := found[other][word][k]) is not None]
            goal = min(others, default=None) if name in OURS else None
            what = f"{name}: to a gap of {word}, {state}"
            lines.append({"what": what, "value": seconds[word][k], "unit": "s", "goal": goal})
    return lines


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--instances", 3, "of which the median is shown"),
        ("--cpu", False, "seconds of the processor"),
        ("--only", str, "these methods alone", {"nargs": "*", "choices": tuple(METHODS)}),
        ("--quick", False, "one instance, without StocBiO"),
        ("--json", Path, "where the measurements are written, with their goals"),
        *((inside, str, harness.HIDDEN) for inside in ("--method", "--data", "--settings", "--began")),
    )
    if arguments.method:
        data, began, settings = Path(arguments.data), float(arguments.began), json.loads(arguments.settings)
        in_this_process(arguments.method, data, arguments.cpu, began, settings)
        return
    names = arguments.only or [name for name in METHODS if not arguments.quick or not name.startswith("StocBiO")]
    if "optimistix" in names and find_spec("optimistix") is None:
        print('optimistix is not installed, and its line is left out: pip install "cobilevel[bench]" installs it.')
        names.remove("optimistix")
    with tempfile.TemporaryDirectory() as folder:
        seeds = range(1 if arguments.quick else arguments.instances)
        judges = [Judge(seed, Path(folder), arguments.cpu) for seed in seeds]
        print(f"{harness.circumstances()}, {len(judges)} instances")
        found = table(judges, names)
    harness.write_measurements(arguments.json, entries(found))


if __name__ == "__main__":
    main()
