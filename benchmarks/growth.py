"""How do time and memory grow? Exponents, fitted on logarithmic scales, for one size at a time.

Time is that of a step of SOBA, and of an evaluation of Newton (a warm solve over the number of Hessians it formed), in
seconds of the processor, so that other work on the machine does not count. Memory is the most a process held, less what
it held at most for a tiny problem of the same kind, that is, for imports and the compiler. Every point has a process of
its own. The lower level finds a mean for each context, coordinate by coordinate, so what grows is the library's part.

What is expected, at most (EXPECTED):

- SOBA: a step is linear in functions, in coordinates of ``y`` and in the batch, and does not see the number of samples.
  Its table of features is linear in samples and functions.
- Newton: an evaluation is linear in samples; it forms a Hessian, so it is quadratic in functions and in coordinates of
  ``y``. Beyond that the factorisation is cubic in ``N d_y``, and from 2000 coefficients on Hessians are not formed.
- The dimension of the contexts matters for their own table alone.

Then three sizes by themselves: 10^6 samples in Newton; 20,000 coefficients without a Hessian, with the memory against
what it must hold (``must_hold``) besides the imports and the compiler; and a stream, of which up to 10 GB are drawn,
far more than is held at any time.
"""

import json
import resource
import time
from pathlib import Path

import jax
import numpy as np

import harness

jax.config.update("jax_enable_x64", True)

BASE = {"functions": 32, "outputs": 8, "batch": 512, "samples": 40_000, "dimension": 1}
NEWTON_BASE = {"functions": 16, "outputs": 4, "samples": 40_000, "dimension": 1}
TINY = {"functions": 2, "outputs": 1, "batch": 4, "samples": 40, "dimension": 1}
TIMES = (1, 3, 9)  # the base: the points of a fit
SMALLER = {
    ("Newton", "functions"): (1, 2, 6),
    ("Newton", "outputs"): (1, 2, 4),
}  # quadratic, and up to 128 coefficients
EXPECTED = {  # exponents of (time, memory); None where there is too little to measure
    ("SOBA", "functions"): (1, 1),
    ("SOBA", "outputs"): (1, 1),
    ("SOBA", "batch"): (1, None),
    ("SOBA", "samples"): (0, 1),
    ("SOBA", "dimension"): (1, 1),
    ("Newton", "functions"): (2, 1),
    ("Newton", "outputs"): (2, 2),
    ("Newton", "samples"): (1, 1),
    ("Newton", "dimension"): (1, 1),
}
STEPS = 50  # of SOBA that are timed
SLACK = 0.15  # of a fitted exponent
MATRIX_FREE = {"functions": 1000, "outputs": 20, "samples": 16_000, "dimension": 1}
FEWER = MATRIX_FREE | {"samples": 2_100}  # compiled alike, so that what the compiler holds can be taken off
WITHIN = 1.5  # times what must be held
DRAWN = (0.1, 1.0, 10.0)  # GB of a stream
ROW_NUMBERS, STREAM_BATCH = 1000, 1024  # of one draw of the stream: 8 MB
FLAT = 1.1  # times as much memory, from the first to the last of them


def problem(outputs, dimension):
    """The lower level finds the conditional mean moved by ``x``; the upper one would have it one higher."""
    import cobilevel as cb

    return cb.Problem(
        lambda x, y, xi, eta: jax.numpy.sum((y - eta["goal"]) ** 2) / 2 + 0.01 * x**2,
        lambda x, y, xi, eta: jax.numpy.sum((y - x - eta["seen"]) ** 2) / 2,
        x0=0.0,
        y0=np.zeros(outputs),
        domain=cb.Interval(-1.0, 1.0) if dimension == 1 else cb.Box([-1.0] * dimension, [1.0] * dimension),
    )


def samples(rows, outputs, dimension):
    import cobilevel as cb

    rng = np.random.default_rng(0)
    xi = rng.uniform(-1, 1, (rows, dimension))
    mean = np.sin(3 * xi[:, :1])
    eta = {
        name: mean + shift + 0.3 * rng.standard_normal((rows, outputs)) for name, shift in (("seen", 0), ("goal", 1))
    }
    return cb.Samples(xi[:, 0] if dimension == 1 else xi, eta)


def basis(functions, dimension):
    """So many waves whatever the dimension, in one coordinate after the other: on uniform contexts they stay well
    conditioned, as polynomials of such degrees do not."""
    import cobilevel as cb

    if dimension == 1:
        return cb.Fourier(functions)
    table = np.zeros((functions, dimension), int)
    for k in range(1, functions):
        table[k, (k - 1) % dimension] = (k - 1) // dimension + 1
    return cb.Fourier(int(table.max()) + 1, index=cb.Listed(table))


def seconds_of_a_step(size):
    """SOBA, as ``solve`` runs it."""
    import cobilevel as cb
    from cobilevel.iteration import advance

    data = samples(size["samples"], size["outputs"], size["dimension"])
    reduced = cb.reduce(problem(size["outputs"], size["dimension"]), basis(size["functions"], size["dimension"]), data)
    solver = cb.SOBA(inner=0.01, linear=0.01, outer=0.01, batch=size["batch"])
    prepared = solver.prepare(reduced)
    state = solver.init(prepared, jax.random.key(1), jax.numpy.int32(2**30))
    bare = solver.ready(prepared.ordinary())
    state = jax.block_until_ready(advance(solver, bare, state, STEPS)[0])
    began = time.process_time()
    jax.block_until_ready(advance(solver, bare, state, STEPS)[0])
    return (time.process_time() - began) / STEPS


def seconds_of_an_evaluation(size):
    """Newton: the second solve, over the number of Hessians, or of products with one where none is formed."""
    import cobilevel as cb

    data = samples(size["samples"], size["outputs"], size["dimension"])
    stated, functions = problem(size["outputs"], size["dimension"]), basis(size["functions"], size["dimension"])
    for _ in range(2):
        began = time.process_time()
        found = cb.solve(stated, data, functions)
        spent = time.process_time() - began
    assert found.converged, found.result
    calls = found.stats["oracles"]
    return spent / calls["hessian" if calls.get("hessian", {}).get("calls") else "hessian_vector"]["calls"]


def seconds_of_a_solve(size):
    """Newton, once."""
    import cobilevel as cb

    data = samples(size["samples"], size["outputs"], size["dimension"])
    stated, functions = problem(size["outputs"], size["dimension"]), basis(size["functions"], size["dimension"])
    began = time.process_time()
    found = cb.solve(stated, data, functions)
    assert found.converged, found.result
    return time.process_time() - began


def seconds_of_a_stream(size):
    """SOBA on fresh rows, two batches a step, until so many GB are drawn."""
    import cobilevel as cb

    def draw(key, count):
        for_context, for_noise = jax.random.split(key)
        xi = jax.random.uniform(for_context, (count,), minval=-1.0)
        row = jax.random.uniform(for_noise, (count, ROW_NUMBERS), minval=-1.0)
        return cb.Samples(xi, row + jax.numpy.sin(3 * xi)[:, None])

    stated = cb.Problem(
        lambda x, y, xi, eta: (y - jax.numpy.mean(eta) - 1) ** 2 / 2 + 0.01 * x**2,
        lambda x, y, xi, eta: (y - x - jax.numpy.mean(eta)) ** 2 / 2,
        x0=0.0,
        y0=0.0,
        domain=cb.Interval(-1.0, 1.0),
    )
    steps = max(1, round(size["drawn"] * 1e9 / (2 * STREAM_BATCH * ROW_NUMBERS * 8)))
    solver = cb.SOBA(inner=0.1, linear=0.1, outer=0.1, batch=STREAM_BATCH)
    began = time.process_time()
    cb.solve(stated, cb.Stream(draw), cb.Chebyshev(5), solver, steps)
    return time.process_time() - began


KINDS = {
    "SOBA": seconds_of_a_step,
    "Newton": seconds_of_an_evaluation,
    "solve": seconds_of_a_solve,
    "stream": seconds_of_a_stream,
}


def point(kind, size):
    """Seconds, and the most memory held in GB, of a process of its own."""
    return harness.in_own_process(__file__, "--point", json.dumps([kind, size]))


def exponent(sizes, values):
    """The slope on logarithmic scales."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def must_hold(size):
    """GB: the samples; four tables of features (as they are, scaled, and two in which NumPy factorises: later, as they
    are and whitened); and ten vectors of coefficients (Newton's, and those of conjugate gradients)."""
    n, functions, outputs = size["samples"], size["functions"], size["outputs"]
    numbers = n * (size["dimension"] + 2 * outputs) + 4 * n * functions + 10 * functions * outputs
    return 8 * numbers / 1e9


def fitted(quick):
    """One line for each exponent."""
    lines, known = [], {}
    bare = {kind: point(kind, TINY)[1] for kind in ("SOBA", "Newton")}
    print(f"{'':<8}{'':<12}{'points: seconds, GB':<64}{'time':>6}{'memory':>8}", flush=True)
    for (kind, name), goals in EXPECTED.items():
        base = BASE if kind == "SOBA" else NEWTON_BASE
        factors = SMALLER.get((kind, name), TIMES)
        sizes = [base | {name: base[name] * factor} for factor in (factors[:2] if quick else factors)]
        for size in sizes:
            label = (kind, *size.values())
            if label not in known:
                known[label] = point(kind, size)
        found = [known[kind, *size.values()] for size in sizes]
        axis = [size[name] for size in sizes]
        slopes = exponent(axis, [f[0] for f in found]), exponent(axis, [f[1] - bare[kind] for f in found])
        words = ", ".join(f"{a}: {f[0]:.2g}, {f[1] - bare[kind]:.3f}" for a, f in zip(axis, found, strict=True))
        print(f"{kind:<8}{name:<12}{words:<64}{slopes[0]:>6.2f}{slopes[1]:>8.2f}", flush=True)
        for part, slope, goal in zip(("time", "memory"), slopes, goals, strict=True):
            if goal is not None:
                what = f"{kind}: {part} in {name}"
                lines.append({"what": what, "value": slope, "unit": "exponent", "goal": goal + SLACK})
    return lines


def alone(quick):
    """10^6 samples, 20,000 coefficients, and a stream."""
    lines = []
    million = {"functions": 10, "outputs": 1, "samples": 1_000_000, "dimension": 1}
    spent, held = point("solve", million)
    lines.append({"what": "Newton, 10^6 samples: first solve", "value": spent, "unit": "s of the processor"})
    lines.append({"what": "Newton, 10^6 samples: memory", "value": held, "unit": "GB"})
    if not quick:
        bare = point("solve", FEWER)[1] - must_hold(FEWER)
        spent, held = point("solve", MATRIX_FREE)
        lines.append({"what": "Newton, 20,000 coefficients: first solve", "value": spent, "unit": "s of the processor"})
        what = "Newton, 20,000 coefficients: memory over what must be held"
        over = (held - bare) / must_hold(MATRIX_FREE)
        lines.append({"what": what, "value": over, "unit": f"times {must_hold(MATRIX_FREE):.2f} GB", "goal": WITHIN})
    drawn = DRAWN[:2] if quick else DRAWN
    streamed = [point("stream", {"drawn": one})[1] for one in drawn]
    what = f"stream, {drawn[-1]:g} GB drawn: memory over that of {drawn[0]:g} GB"
    lines.append(
        {"what": what, "value": streamed[-1] / streamed[0], "unit": f"times {streamed[0]:.2f} GB", "goal": FLAT}
    )
    for line in lines:
        print(f"{line['what']:<64}{line['value']:>8.3g} {line['unit']}", flush=True)
    return lines


def main() -> None:
    arguments = harness.arguments(
        __doc__,
        ("--only", str, "one part alone", {"choices": ("fits", "alone")}),
        ("--quick", False, "two points for each fit, and without the largest sizes"),
        ("--json", Path, "where the measurements are written, with their goals"),
        ("--point", str, harness.HIDDEN),
    )
    if arguments.point:
        kind, size = json.loads(arguments.point)
        seconds = KINDS[kind](size)
        print(json.dumps([seconds, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e9]))
        return
    print(harness.circumstances())
    lines = [] if arguments.only == "alone" else fitted(arguments.quick)
    lines += [] if arguments.only == "fits" else alone(arguments.quick)
    harness.write_measurements(arguments.json, lines)


if __name__ == "__main__":
    main()
