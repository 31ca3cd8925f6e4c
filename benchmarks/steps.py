"""Steps per second of the stochastic solvers, and of the plainest loops that do the same mathematics.

The problem is small (``dx = 10``, ``dy = 4``, five functions, 1024 samples, batches of 64), so what is measured is what
a step costs besides its arithmetic. A plain loop is a ``jax.lax.scan`` of the textbook method over the same reduced
problem: it slices batches from the pool in the order in which it lies, with constant steps, and keeps no counts, no
averages, no history and no tests of any kind.

Every program is compiled first; then all take turns, several times, each time from the start for the same number of
steps (those of BSA grow longer as it goes on), and medians are printed. On a machine that is shared, ``--cpu`` counts
seconds of the processor, not of the wall, of one thread at best: pin it to one core.

``--runs``: whole runs instead, as ``solve`` makes them, of 4,096 and 16,384 steps: what measuring scales, history and
checks take is in them. Each is made once before, so that nothing is compiled.
"""

import statistics
import time
from pathlib import Path

import jax

import harness

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp

import cobilevel as cb
from cobilevel.iteration import advance
from cobilevel.iteration.loop import CHUNKS

BATCH, LOOPS = 64, 10  # rows of a batch; inner steps, and terms of a series
ROUNDS = 5  # timed runs of each, of which the median counts
SOLVERS = {
    "SOBA": cb.SOBA(),
    "SABA": cb.SABA(tolerance=0.0),
    "StocBiO": cb.StocBiO(inner_steps=LOOPS, terms=LOOPS),
    "SUSTAIN": cb.SUSTAIN(terms=LOOPS),
    "MRBO": cb.MRBO(terms=LOOPS),
    "BSA": cb.BSA(terms=LOOPS),
    "TTSA": cb.TTSA(terms=LOOPS),
    "AmIGO": cb.AmIGO(inner_steps=LOOPS, linear_steps=LOOPS),
}
GOALS = {  # steps per second
    "SOBA": 62_000,
    "SABA": 32_800,
    "StocBiO": 7_200,
    "SUSTAIN": 11_000,
    "MRBO": 6_960,
    "BSA": 3_080,
    "TTSA": 18_000,
    "AmIGO": 8_800,
}
AGAINST_PLAIN = 1.25  # times the steps per second of a plain loop: the goal
STEPS = {"SOBA": 4000}  # of a timed run; of the others, those of one call


class Plain:
    """What the plain loops share: the reduced problem, its pool cut into batches, and constant steps."""

    def __init__(self, reduced):
        self.reduced, self.upper, self.lower = reduced, reduced.upper, reduced.lower
        self.pool = reduced.lower_pool
        self.batches = len(self.pool) // BATCH
        self.inner, self.outer = 0.02, 0.005

    def batch(self, pool, number):
        """Batch `number`, sliced from a pool."""
        begin = number % self.batches * BATCH
        return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, begin, BATCH), pool)

    def cross(self, x, W, v, batch):
        """``d12 g v``."""
        return jax.grad(lambda x: jnp.vdot(jax.grad(self.lower, 1)(x, W, batch), v))(x)

    def product(self, x, W, v, batch):
        """``d22 g v``."""
        return jax.jvp(lambda W: jax.grad(self.lower, 1)(x, W, batch), (W,), (v,))[1]

    def scan(self, step, begin, count):
        """So many steps, compiled; returns a function of the state and the first step's number."""

        def many(pool, state, first):
            return jax.lax.scan(lambda s, k: (step(pool, s, k), None), state, first + jnp.arange(count))[0]

        program = jax.jit(many)
        return lambda state, first: program(self.pool, state, first), begin

    def soba(self, count):
        """One step of ``W``, ``v`` and ``x`` at a time, all at one point, from one batch of each level."""

        def step(pool, state, k):
            x, W, v = state
            up, low = self.batch(pool, k), self.batch(pool, k + 7)
            d1, d2 = jax.grad(self.upper, (0, 1))(x, W, up)
            slopes = lambda W: jax.grad(self.lower, (0, 1))(x, W, low)
            (_, slope), (cross, product) = jax.jvp(slopes, (W,), (v,))
            return x - self.outer * (d1 - cross), W - self.inner * slope, v - self.inner * (product - d2)

        x, W = self.reduced.x0, self.reduced.W0
        return self.scan(step, (x, W, jnp.zeros_like(W)), count)

    def saba(self, count):
        """The same with a table of the terms of every row, and their means, as in SAGA."""
        f, g = self.reduced.problem.upper, self.reduced.problem.lower

        def terms(x, W, v, up, low):
            d1, d2 = jax.vmap(jax.grad(f, (0, 1)), (None, 0, 0, 0))(x, up.features @ W, up.xi, up.eta)

            def local(y, z, xi, eta):
                (_, slope), (cross, product) = jax.jvp(lambda y: jax.grad(g, (0, 1))(x, y, xi, eta), (y,), (z,))
                return slope, product, cross

            return (d2, d1), jax.vmap(local)(low.features @ W, low.features @ v, low.xi, low.eta)

        def step(pool, state, k):
            (x, W, v), tables, means = state
            numbers = (k, k + 7)
            up, low = (self.batch(pool, number) for number in numbers)
            new = terms(x, W, v, up, low)
            moved, kept, after = [], [], []
            for number, batch, fresh, table, mean in zip(numbers, (up, low), new, tables, means, strict=True):
                begin = number % self.batches * BATCH
                change = [a - jax.lax.dynamic_slice_in_dim(t, begin, BATCH) for a, t in zip(fresh, table, strict=True)]
                spread = lambda a, phi=batch.features: phi.T @ a / BATCH if a.shape[1] == W.shape[1] else a.mean(0)
                shift = [spread(a) for a in change]
                moved.append([s + m for s, m in zip(shift, mean, strict=True)])
                kept.append(
                    [jax.lax.dynamic_update_slice_in_dim(t, a, begin, 0) for t, a in zip(table, fresh, strict=True)]
                )
                after.append([m + s * BATCH / len(pool) for s, m in zip(shift, mean, strict=True)])
            (d2, d1), (slope, product, cross) = moved
            point = (x - self.outer * (d1 - cross), W - self.inner * slope, v - self.inner * (product - d2))
            return point, kept, after

        x, W = self.reduced.x0, self.reduced.W0
        dx, dy, rows, size = len(x), W.shape[1], len(self.pool), len(W)
        tables = [[jnp.zeros((rows, dy)), jnp.zeros((rows, dx))], [jnp.zeros((rows, n)) for n in (dy, dy, dx)]]
        means = [[jnp.zeros((size, dy)), jnp.zeros(dx)], [jnp.zeros((size, dy)), jnp.zeros((size, dy)), jnp.zeros(dx)]]
        return self.scan(step, ((x, W, jnp.zeros_like(W)), tables, means), count)

    def stocbio(self, count):
        """Ten steps of ``W``, a Neumann sum of ten terms, one step of ``x``."""

        def step(pool, state, k):
            x, W = state
            first = k * (2 * LOOPS + 1)
            inner = lambda t, W: W - self.inner * jax.grad(self.lower, 1)(x, W, self.batch(pool, first + t))
            W = jax.lax.fori_loop(0, LOOPS, inner, W)
            d1, d2 = jax.grad(self.upper, (0, 1))(x, W, self.batch(pool, k))

            def factor(t, carry):
                power, total = carry
                batch = self.batch(pool, first + LOOPS + t)
                power = power - self.inner * self.product(x, W, power, batch)
                return power, total + power

            _, v = jax.lax.fori_loop(0, LOOPS, factor, (d2, d2))
            cross = self.cross(x, W, self.inner * v, self.batch(pool, first + 2 * LOOPS))
            return x - self.outer * (d1 - cross), W

        return self.scan(step, (self.reduced.x0, self.reduced.W0), count)


class Timed:
    """A compiled program of steps, and how long a step took in each round."""

    def __init__(self, name, call, state, count, steps, clock):
        self.name, self.call, self.state, self.count, self.clock = name, call, state, count, clock
        self.steps, self.seconds = steps, []
        begin = clock()
        jax.block_until_ready(call(state, 0))
        self.compiled = clock() - begin

    def round(self):
        """One timed run."""
        state, begin = self.state, self.clock()
        for done in range(0, self.steps, self.count):
            state = self.call(state, done)
        jax.block_until_ready(state)
        self.seconds.append((self.clock() - begin) / self.steps)

    @property
    def rate(self):
        """Steps per second."""
        return 1 / statistics.median(self.seconds)


def ours(name, reduced, clock):
    """A solver at its default step sizes, in calls of as many steps as ``solve`` takes at once."""
    solver = SOLVERS[name]
    prepared = solver.prepare(reduced)
    state = solver.init(prepared, jax.random.key(1), jnp.int32(2**30))
    bare = solver.ready(prepared.ordinary())
    count = CHUNKS * solver.chunk
    call = lambda s, _: advance(solver, bare, s, count)[0]
    return Timed(name, call, state, count, STEPS.get(name, count), clock)


def plain(name, reduced, clock):
    """A plain loop, in calls of as many steps as ours."""
    count = CHUNKS * SOLVERS[name].chunk
    call, state = getattr(Plain(reduced), name.lower())(count)
    return Timed(f"plain {name}", call, state, count, STEPS.get(name, count), clock)


def whole_runs(name, instance, basis, clock):
    """Seconds of a run, and of a plain loop of as many steps."""
    for count in (4096, 16_384):
        solve = lambda count=count: cb.solve(
            instance.problem, instance.train, basis=basis, solver=SOLVERS[name], steps=count
        )
        calls = {"run": solve}
        if hasattr(Plain, name.lower()):
            loop, state = getattr(Plain(cb.reduce(instance.problem, basis, instance.train)), name.lower())(count)
            calls["plain"] = lambda loop=loop, state=state: jax.block_until_ready(loop(state, 0))
        seconds = {}
        for what, call in calls.items():
            call()
            times = []
            for _ in range(3):
                begin = clock()
                call()
                times.append(clock() - begin)
            seconds[what] = min(times)
        words = ", ".join(f"{what} {value:.3f} s" for what, value in seconds.items())
        ratio = f", ratio {seconds['plain'] / seconds['run']:.2f}" if "plain" in seconds else ""
        print(f"{name:<9} {count:>6,} steps: {words}{ratio}", flush=True)


def main() -> None:
    parser = harness.parser(
        __doc__,
        ("solver", str, f"of {', '.join(SOLVERS)}; all where none is named", {"nargs": "*"}),
        ("--cpu", False, "seconds of the processor"),
        ("--quick", False, "two rounds"),
        ("--runs", False, "whole runs"),
        ("--json", Path, "where the measurements are written, with their goals"),
    )
    arguments = parser.parse_args()
    names = arguments.solver or list(SOLVERS)
    if not set(names) <= set(SOLVERS):
        parser.error(f"the solvers are {', '.join(SOLVERS)}")
    clock = time.process_time if arguments.cpu else time.perf_counter
    instance = cb.gallery.quadratic(0, dx=10, dy=4, train=1024, test=10)
    basis = cb.Orthonormal(cb.Chebyshev(5))
    if arguments.runs:
        for name in names:
            whole_runs(name, instance, basis, clock)
        return
    reduced = cb.reduce(instance.problem, basis, instance.train)
    table = [ours(name, reduced, clock) for name in names]
    table += [plain(name, reduced, clock) for name in names if hasattr(Plain, name.lower())]
    for _ in range(2 if arguments.quick else ROUNDS):
        for row in table:
            row.round()
    print(f"{'solver':<9} {'steps/s':>9} {'plain':>9} {'ratio':>6} {'compile s':>10} {'plain':>6}")
    lines = []
    for row in table[: len(names)]:
        other = next((r for r in table if r.name == f"plain {row.name}"), None)
        against = f"{other.rate:>9,.0f} {row.rate / other.rate:>6.2f}" if other else f"{'':>9} {'':>6}"
        print(f"{row.name:<9} {row.rate:>9,.0f} {against} {row.compiled:>10.1f}", end="")
        print(f" {other.compiled:>6.1f}" if other else "")
        lines.append({"what": row.name, "value": row.rate, "unit": "steps/s", "goal": GOALS[row.name]})
        if other:
            ratio = row.rate / other.rate
            lines.append({"what": f"{row.name} against a plain loop", "value": ratio, "unit": "times as many"})
            lines[-1]["goal"] = AGAINST_PLAIN
    harness.write_measurements(arguments.json, [line | {"better": "more"} for line in lines])


if __name__ == "__main__":
    main()
