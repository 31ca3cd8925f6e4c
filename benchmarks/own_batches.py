"""stocBiO[N] where every cell draws a batch of its own, on hyper-cleaning: does the loss fall with more cells?

Cells meet in the decision alone, so a step is products of each cell's own images with its own classifier. The family
``own-batch`` of ``cobilevel.paper`` draws the same, but as a policy of N functions that sees every image of all cells:
9 times as slow at 25 cells, 24 times at 50 (digits, 20 images a cell, two busy processors).

Step sizes are searched on a trial that is not reported, with equal lengths for all sizes; the settings are around what
the whole grid of the paper gave where cells share a batch. ``--shorter`` adds shorter inner steps, which the coldest of
many cells may need. Everything is written after each trial, so that a run that is cut off leaves what it has, paired:
``own-batches.json`` (curves, for ``cobilevel report``) and ``settings.json`` (the search).

Run: python benchmarks/own_batches.py --folder MNIST --seconds 350 [--shorter] [--settings settings.json]
     python benchmarks/own_batches.py --batch 20 --cells 5 25 --steps 3000 --fixed 0.1 1000 10
The first needs a GPU; the second takes the digits.
"""

import json
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import cobilevel as cb
import harness
from cobilevel.gallery import entropies, images
from cobilevel.paper.cleaning_claims import moving_average

LOW, HIGH, RIDGE = 0.1, 10.0, 1e-3  # temperatures and regulariser of the gallery
TERMS, SCALE = 10, 1e-2  # of the Neumann series, as the paper prints them
LOOKS, SEARCHING = 120, 10_000  # looks at a run; the trial on which step sizes are searched
GRID = [(0.1, 1e5, 10), (0.1, 1e5, 100), (1.0, 1e5, 10), (1.0, 1e5, 100), (0.1, 1e4, 10), (1.0, 1e4, 10)]
SHORTER = [(0.01, 1e5, 10), (0.01, 1e5, 100), (0.01, 1e4, 10)]
SEEN = ("validation", "training", "weight", "fine")


class Trial:
    """Hyper-cleaning as the gallery draws it: images and labels of both levels, a start, and the Gauss rule."""

    def __init__(self, seed, pool):
        one = cb.gallery.cleaning(seed, pool)
        parts = [level.eta[name] for level in (one.train.lower, one.train.upper) for name in ("image", "label")]
        self.data = tuple(jnp.asarray(part) for part in parts)
        self.start = lambda N: (jnp.array(one.problem.x0), jnp.tile(one.problem.y0, (N, 1, 1)))
        self.gauss = one.train.upper.law.quadrature(32)


def draw(key, images, labels, N, batch):
    """A batch a cell: rows with replacement, temperatures uniform in the cell."""
    for_rows, for_xi = jax.random.split(key)
    rows = jax.random.randint(for_rows, (N, batch), 0, len(labels))
    place = (jnp.arange(N)[:, None] + jax.random.uniform(for_xi, (N, batch))) / N
    return rows, images[rows], labels[rows], LOW + (HIGH - LOW) * place


def residual(y, X, Y, xi):
    """The derivative of each entropy by the logits ``X y``."""
    p = jax.nn.softmax(jnp.einsum("nbp,npc->nbc", X, y) / xi[..., None])
    return (p - jax.nn.one_hot(Y, y.shape[2])) / xi[..., None]


def slope(y, x, sample):
    """Of each cell's own mean lower objective, by its ``y``."""
    rows, X, Y, xi = sample
    weight = jax.nn.sigmoid(x)[rows][..., None] / rows.shape[1]
    return jnp.einsum("nbp,nbc->npc", X, weight * residual(y, X, Y, xi)) + 2 * RIDGE * y


def curved(y, v, x, sample):
    """The Hessian of each cell's own mean lower objective, times ``v``."""
    rows, X, _, xi = sample
    logits, d = jnp.split(jnp.einsum("nbp,npc->nbc", X, jnp.concatenate([y, v], axis=2)), 2, axis=2)
    p = jax.nn.softmax(logits / xi[..., None])
    turned = p * (d - jnp.sum(p * d, axis=-1, keepdims=True)) / xi[..., None] ** 2
    weight = jax.nn.sigmoid(x)[rows][..., None] / rows.shape[1]
    return jnp.einsum("nbp,nbc->npc", X, weight * turned) + 2 * RIDGE * v


@partial(jax.jit, static_argnames=("batch", "T", "steps"), donate_argnums=(0,))
def advance(state, key, data, inner, outer, batch, T, steps):
    """So many steps of StocBiO on all cells at once; each of its ``T + TERMS + 2`` oracles has batches of its own."""
    images, labels, held, held_labels = data
    N = len(state[1])

    def step(k, state):
        x, y = state
        keys = jax.random.fold_in(key, k)
        at = lambda place: jax.random.fold_in(keys, place)
        lower = lambda place: draw(at(place), images, labels, N, batch)
        y = jax.lax.fori_loop(0, T, lambda t, y: y - inner * slope(y, x, lower(t)), y)
        _, X, Y, xi = draw(at(T), held, held_labels, N, batch)
        first = jnp.einsum("nbp,nbc->npc", X, residual(y, X, Y, xi)) / batch

        def factor(j, carry):
            total, v = carry
            v = v - SCALE * curved(y, v, x, lower(T + 1 + j))
            return total + v, v

        total, _ = jax.lax.fori_loop(0, TERMS, factor, (first, first))
        rows, X, Y, xi = lower(T + 1 + TERMS)
        along = jnp.sum(residual(y, X, Y, xi) * jnp.einsum("nbp,npc->nbc", X, SCALE * total), axis=-1)
        s = jax.nn.sigmoid(x)
        cross = jnp.zeros_like(x).at[rows.ravel()].add(((s * (1 - s))[rows] * along).ravel() / (N * batch))
        return x + outer * cross, y

    return jax.lax.fori_loop(0, steps, step, state)


@jax.jit
def look(state, data, gauss):
    """Validation and training loss by the Gauss rule, mean weight, and validation at midpoints, fine in every cell."""
    (x, y), (images, labels, held, held_labels) = state, data
    cell = lambda xi: jnp.minimum(((xi - LOW) / (HIGH - LOW) * len(y)).astype(int), len(y) - 1)

    def losses(pixels, targets, nodes, weights):
        one = lambda item: jnp.mean(weights * entropies((pixels @ y[item[1]]) / item[0], targets))
        return jax.lax.map(one, (nodes, cell(nodes)))

    nodes, shares = (part.ravel().astype(y.dtype) for part in gauss)
    fine = LOW + (HIGH - LOW) * (jnp.arange(1000) + 0.5) / 1000
    s, ridge = jax.nn.sigmoid(x), RIDGE * jnp.sum(y**2, axis=(1, 2))[cell(nodes)]
    validation = shares @ losses(held, held_labels, nodes, 1.0)
    training = shares @ (losses(images, labels, nodes, s) + ridge)
    return jnp.stack([validation, training, jnp.mean(s), jnp.mean(losses(held, held_labels, fine, 1.0))])


def run(seed, trial, N, batch, setting, steps, looks=LOOKS):
    """Curves, look by quantity, and the steps between looks.

    `steps` are for ten inner ones; with others, as many as make as many oracle calls.
    """
    inner, outer, T = setting
    chunk = max(1, round(steps / looks * (10 + TERMS + 2) / (T + TERMS + 2)))
    state, seen, key = trial.start(N), [], jax.random.key(seed)
    for k in range(looks):
        state = advance(state, jax.random.fold_in(key, k), trial.data, inner, outer, batch, T, chunk)
        seen.append(look(state, trial.data, trial.gauss))
    return np.asarray(jnp.stack(seen), float), chunk


def pace(trial, N, batch, steps=20):
    """Seconds of a step with ten inner ones, compiling apart."""
    once = lambda state, k: advance(state, jax.random.key(k), trial.data, 0.1, 1.0, batch, 10, steps)
    state = jax.block_until_ready(once(trial.start(N), 0))
    jax.block_until_ready(look(state, trial.data, trial.gauss))
    return harness.timed(once, state, 1)[1] / steps


def coldest(trial, N):
    """The largest curvature of the coldest cell's lower level at the start; inner steps beyond 2 over it diverge."""
    X, classes = np.asarray(trial.data[0], float), trial.start(1)[1].shape[2]
    spread = np.linalg.eigvalsh(X.T @ X / len(X))[-1]
    return 0.5 / classes * spread / (LOW * (LOW + (HIGH - LOW) / N)) + 2 * RIDGE


def end(curves):
    """Where curves end, each a moving average over a tenth of the run."""
    return moving_average(np.asarray(curves, float))[:, -1]


def search(trial, asked, grid, paces, seconds):
    """The best setting for each size; all are tried with the same number of steps."""
    length = min(asked.steps, max(LOOKS, int(seconds / (len(grid) * sum(paces.values())))))
    scores, chosen = {}, {}
    for N in asked.cells:
        tables = [run(SEARCHING, trial, N, asked.batch, setting, length, 20)[0] for setting in grid]
        ends = np.concatenate([end(table[None, :, 0]) for table in tables])
        scores[N], chosen[N] = ends.tolist(), grid[int(np.argmin(np.where(np.isfinite(ends), ends, np.inf)))]
        print(f"search, {N} cells, {length} steps: {np.round(ends, 4).tolist()}, {chosen[N]} chosen", flush=True)
        found = {"grid": grid, "steps": length, "scores": scores, "chosen": chosen}
        (asked.out / "settings.json").write_text(json.dumps(found))
    return chosen


def settings(trial, asked, grid, paces, seconds):
    if asked.fixed:
        return dict.fromkeys(asked.cells, (*asked.fixed[:2], int(asked.fixed[2])))
    if asked.settings:
        known = json.loads(asked.settings.read_text())["chosen"]
        return {N: tuple(known[str(N)]) for N in asked.cells}
    return search(trial, asked, grid, paces, seconds)


def main():
    asked = harness.arguments(
        __doc__,
        ("--folder", Path, "MNIST, four IDX files; the digits of scikit-learn where it is left out"),
        ("--out", Path, "folder for what is written", {"default": Path("own-batches")}),
        ("--batch", 512, "images a cell and batch"),
        ("--cells", int, "numbers of cells", {"nargs": "+", "default": [5, 25, 50]}),
        ("--steps", 12_000, "at most, for ten inner ones"),
        ("--seeds", 4, "trials"),
        ("--seconds", 350.0, "for all, about"),
        ("--share", 0.35, "of the seconds, for the search"),
        ("--shorter", False, "search inner steps of 0.01 too"),
        ("--settings", Path, "step sizes of an earlier search"),
        ("--fixed", float, "inner and outer step size and inner steps, for all sizes", {"nargs": 3}),
    )
    asked.out.mkdir(parents=True, exist_ok=True)
    ends, pool = time.perf_counter() + asked.seconds, images.load(asked.folder or "digits")
    left = lambda: ends - time.perf_counter()
    device, grid, trial = jax.devices()[0].device_kind, GRID + SHORTER * asked.shorter, Trial(SEARCHING, pool)
    print(f"{device}, {harness.circumstances()}; {pool.name}, {asked.batch} images a cell and batch", flush=True)
    paces = {N: pace(trial, N, asked.batch) for N in asked.cells}
    print("a step:", ", ".join(f"{N} cells {1e3 * p:.2f} ms" for N, p in paces.items()), flush=True)
    print("curvature, coldest cell:", ", ".join(f"{N} cells {coldest(trial, N):.3g}" for N in asked.cells), flush=True)
    chosen = settings(trial, asked, grid, paces, asked.share * left())
    whole = int(min(asked.steps, 0.85 * left() / (sum(paces.values()) * asked.seeds)))
    steps = max(1, whole // LOOKS) * LOOKS
    print(f"{steps} steps a trial", flush=True)
    names = ("inner", "outer", "inner_steps")
    rows = {
        N: {"N": N, "batch": asked.batch} | dict(zip(names, chosen[N], strict=True)) | {name: [] for name in SEEN}
        for N in asked.cells
    }
    about = {"experiment": "cleaning", "family": "own-batch", "data": pool.name, "train": len(trial.data[1]),
             "device": device, "steps": steps, "grid": [] if asked.fixed else grid, "seeds": []}  # fmt: skip
    spent = 0.0
    for seed in range(asked.seeds):
        if seed and left() < 1.05 * spent / seed:
            print(f"no time for trial {seed}", flush=True)
            break
        began, trial = time.perf_counter(), Trial(seed, pool)
        tables = {N: run(seed, trial, N, asked.batch, chosen[N], steps) for N in asked.cells}
        for N, (table, chunk) in tables.items():
            drawn = N * asked.batch * (chosen[N][2] + TERMS + 2) * chunk
            rows[N]["samples"] = [drawn * (k + 1) for k in range(len(table))]
            for name, column in zip(SEEN, table.T, strict=True):
                rows[N][name].append([float(f"{value:.6g}") for value in column])
        about["seeds"].append(seed)
        spent += time.perf_counter() - began
        (asked.out / "own-batches.json").write_text(json.dumps(about | {"methods": list(rows.values())}))
        words = ", ".join(f"{N} cells {end(rows[N]['validation'])[-1]:.4f}" for N in asked.cells)
        print(f"trial {seed}: validation {words}; {left():.0f} s left", flush=True)
    fewest = end(rows[asked.cells[0]]["validation"])
    for N in asked.cells:
        curve, less = np.mean(rows[N]["validation"], axis=0), end(rows[N]["validation"]) - fewest
        change = 100 * (curve[-1] / curve[-1 - len(curve) // 5] - 1)
        print(f"{N} cells less {asked.cells[0]}: {np.round(less, 4).tolist()}; last fifth {change:+.2f}%")


if __name__ == "__main__":
    main()
