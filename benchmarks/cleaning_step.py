"""What a step of hyper-cleaning costs, against the products of matrices that it is made of.

The problem has the size of MNIST (784 pixels, 10 classes, 19,000 training images; synthetic ones, nothing is fetched),
a policy of five functions, and a step of ``StocBiO`` with ten inner steps, ten terms of its series and batches of 512.
All that a step must compute with images is products of a batch, 512 x 784, with coefficients, 784 x 50, and of its
transpose with as many numbers for each image. They are counted in pairs: one for each of the ten inner gradients, two
for each of the ten products with a Hessian (which three products would do for), three for the hypergradient. The 33
bare pairs are timed in the same run, in a loop, on a batch that lies ready. What a step has to do besides is drawing
its 22 batches, a gather of 512 rows each: it is part of the step, and timed by itself too.

The programs take turns, and medians are printed. On a machine that is shared, ``--cpu`` counts seconds of the
processor, not of the wall: pin it to one core.
Run: python benchmarks/cleaning_step.py [--cpu] [--json FILE]
"""

import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import cobilevel as cb
import harness
from cobilevel.iteration import advance

PIXELS, CLASSES, TRAIN, VALIDATION = 784, 10, 19_000, 1_000
BATCH, FUNCTIONS, LOOPS = 512, 5, 10  # rows of a batch; functions; inner steps, and terms of the series
PAIRS = LOOPS + 2 * LOOPS + 3
BATCHES = 2 * LOOPS + 2
RATE = 1e-4  # of all steps: small enough for the coldest classifiers not to diverge
ROUNDS = 5  # timed runs of each, of which the median counts
GOAL = 2.0  # times the products


def synthetic():
    """Images as sparse as digits are, at random, with labels that a linear classifier learns in part."""
    rng = np.random.default_rng(0)
    count = TRAIN + VALIDATION + 100
    images = rng.random((count, PIXELS), np.float32) * (rng.random((count, PIXELS)) < 0.2)
    scores = images @ rng.normal(size=(PIXELS, CLASSES)).astype(np.float32)
    labels = np.argmax(scores + rng.normal(size=scores.shape), axis=1).astype(np.int32)
    labels[:CLASSES] = np.arange(CLASSES)
    return cb.gallery.Images(images[:-100], labels[:-100], images[-100:], labels[-100:], "synthetic")


def step(count):
    """So many steps of ``StocBiO``, compiled, as ``solve`` runs them."""
    instance = cb.gallery.cleaning(0, synthetic(), TRAIN, VALIDATION)
    reduced = cb.reduce(instance.problem, cb.Orthonormal(cb.Chebyshev(FUNCTIONS)), instance.train)
    solver = cb.StocBiO(inner=RATE, outer=RATE, neumann=RATE, inner_steps=LOOPS, terms=LOOPS, batch=BATCH)
    prepared = solver.prepare(reduced)
    state = solver.init(prepared, jax.random.key(1), jnp.int32(2**30))
    bare = solver.ready(prepared.ordinary())
    call = lambda: advance(solver, bare, state, count)[0]
    assert int(call().step) == count, "the run broke off, and a step would seem to take less than it does"
    return call


def products(count):
    """So many times the bare pairs of products."""
    rng = np.random.default_rng(1)
    images = jnp.asarray(rng.normal(size=(BATCH, PIXELS)) / (BATCH * PIXELS) ** 0.25, jnp.float32)
    start = jnp.asarray(rng.normal(size=(PIXELS, FUNCTIONS * CLASSES)), jnp.float32)
    many = jax.jit(lambda a, b: jax.lax.fori_loop(0, count * PAIRS, lambda _, b: a.T @ (a @ b), b))
    return lambda: many(images, start)


def gathers(count):
    """So many times the rows of the batches of a step, drawn from all images."""
    rng = np.random.default_rng(2)
    images = jnp.asarray(rng.random((TRAIN, PIXELS), np.float32))
    index = jnp.asarray(rng.integers(TRAIN, size=(count * BATCHES, BATCH)), jnp.int32)
    column = jnp.ones(PIXELS, jnp.float32)

    def one(k, total):  # a product with a vector, so that the rows have to be there
        return total + images.at[index[k]].get(mode="promise_in_bounds") @ column

    many = jax.jit(lambda: jax.lax.fori_loop(0, count * BATCHES, one, jnp.zeros(BATCH, jnp.float32)))
    return many


def main():
    words = harness.arguments(
        __doc__.splitlines()[0],
        ("--cpu", False, "seconds of the processor instead of the wall"),
        ("--json", Path, "a file for the figures"),
    )
    clock = time.process_time if words.cpu else time.perf_counter
    count = 5 if jax.default_backend() == "cpu" else 100
    timed = {"step": step(count), "products": products(count), "gathers": gathers(count)}
    seconds = {name: [] for name in timed}
    for call in timed.values():
        jax.block_until_ready(call())
    for _ in range(ROUNDS):
        for name, call in timed.items():
            begin = clock()
            jax.block_until_ready(call())
            seconds[name].append((clock() - begin) / count)
    ms = {name: 1000 * statistics.median(each) for name, each in seconds.items()}
    ratio = ms["step"] / ms["products"]
    figures = [
        {"what": "a step of cleaning", "value": ms["step"], "unit": "ms", "goal": None},
        {"what": f"its {PAIRS} pairs of products", "value": ms["products"], "unit": "ms", "goal": None},
        {"what": f"its {BATCHES} gathers of images", "value": ms["gathers"], "unit": "ms", "goal": None},
        {"what": "a step of cleaning over its products", "value": ratio, "unit": "times", "goal": GOAL},
    ]
    for row in figures:
        goal = "" if row["goal"] is None else f"   (goal: at most {row['goal']:g})"
        print(f"{row['what']:<38} {row['value']:>9.3g} {row['unit']}{goal}")
    harness.write_measurements(words.json, figures)


if __name__ == "__main__":
    main()
