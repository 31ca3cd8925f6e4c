r"""Hyper-cleaning with temperatures: weights for training images of which some carry a wrong label.

A linear classifier $y$ without bias is trained at every temperature $\xi$ on weighted images and judged on clean ones:
$$\min_x \; E_\xi \frac1v \sum_{j \le v} CE(X'_j\, y^\star(x, \xi) / \xi, Y'_j), \qquad
y^\star(x, \xi) = \arg\min_y \frac1n \sum_{i \le n} \sigma(x_i)\, CE(X_i\, y / \xi, Y_i) + \lambda |y|^2 ,$$
with $\sigma$ the sigmoid. Contexts do not depend on the data, and each level has its own data.
"""

import os
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int

from ..answer import COLOURS, shown_figure, tidy
from ..ground import positive, whole
from ..problem import Interval, Levels, Problem, Product, Uniform
from . import softmax
from .images import Images, digits, load
from .quadratic import Instance


def cross_entropy(
    x: ArrayLike, y: Float[Array | np.ndarray, "pixels classes"], xi: ArrayLike, eta: dict[str, Array]
) -> Float[Array, ""]:
    r"""$CE(X y / \xi, Y)$ of one image: the upper objective, which does not look at ``x``."""
    image, temperature = (jnp.asarray(v, y.dtype) for v in (eta["image"], xi))
    return -jax.nn.log_softmax(image @ y / temperature)[eta["label"]]


class WeightedEntropy(eqx.Module):
    r"""$\sigma(x_i)\, CE(X_i y / \xi, Y_i) + \lambda |y|^2$ of the training image ``i = eta["index"]``: ``g``."""

    regulariser: float = 1e-3

    def __call__(
        self,
        x: Float[Array | np.ndarray, " n"],
        y: Float[Array | np.ndarray, "pixels classes"],
        xi: ArrayLike,
        eta: dict[str, Array],
    ) -> Float[Array, ""]:
        return jax.nn.sigmoid(x[eta["index"]]) * cross_entropy(x, y, xi, eta) + self.regulariser * jnp.sum(y**2)


class CleaningTruth(eqx.Module):
    """How the training labels were corrupted, and the exact classifiers for any weights.

    - `clean_labels`: the labels before corruption; `labels`: those of the training data.
    - `redrawn`: whether a label was redrawn; `corrupted`: whether it is now wrong (it may have been redrawn unchanged).
    """

    images: Float[Array, "n pixels"]
    labels: Int[Array, " n"]
    clean_labels: Int[np.ndarray, " n"]
    redrawn: Bool[np.ndarray, " n"]
    corrupted: Bool[np.ndarray, " n"]
    lower: WeightedEntropy
    classes: int = eqx.field(static=True)

    def fit(
        self,
        x: Float[Array | np.ndarray, " n"],
        xi: Float[Array | np.ndarray, " m"],
        start: Float[Array, "m pixels classes"] | None = None,
        tolerance: float = 1e-6,
    ) -> softmax.ExactClassifiers:
        """The exact classifiers over all training images with how exact they are; see ``softmax.fit``.

        `start` is a first guess, such as the classifiers at an ``x`` nearby. Can be jitted, and mapped over ``x``.
        """
        weights = jax.nn.sigmoid(jnp.asarray(x))
        return softmax.fit(
            self.images, self.labels, weights, jnp.asarray(xi), self.lower.regulariser, self.classes, start, tolerance
        )

    def y(
        self, x: Float[Array | np.ndarray, " n"], xi: Float[Array | np.ndarray, " m"]
    ) -> Float[Array, "m pixels classes"]:
        """Exact classifiers."""
        return self.fit(x, xi).y

    def objective(
        self, x: Float[Array | np.ndarray, " n"], data: dict[str, Any], temperatures: tuple[Any, Any]
    ) -> float:
        """The loss on `data`, such as the validation images, with exact classifiers at `temperatures` and weights."""
        xi, shares = (np.asarray(part, np.float32) for part in temperatures)
        y = jnp.asarray(self.y(x, xi))
        image, heat = (jnp.asarray(part, y.dtype) for part in (data["image"], xi))
        logits = jnp.einsum("np,mpc->mnc", image, y) / heat[:, None, None]
        each = softmax.entropies(logits, jnp.broadcast_to(jnp.asarray(data["label"]), logits.shape[:2]))
        return float(np.average(np.mean(np.asarray(each, float), axis=1), weights=shares))

    def found(self, x: Float[Array | np.ndarray, " n"]) -> float:
        """The share of pairs of a wrong and a right label in which the wrong one has less weight."""
        x = np.asarray(x, float)
        right, wrong = np.sort(x[~self.corrupted]), x[self.corrupted]
        below = sum(np.searchsorted(right, wrong, side) for side in ("left", "right")) / 2
        return float(1 - np.mean(below) / len(right))

    def words(self, x: Float[Array | np.ndarray, " n"]) -> str:
        """How well the weights find the wrong labels, in words."""
        weight = np.asarray(jax.nn.sigmoid(jnp.asarray(x)))
        return (
            f"{self.corrupted.sum()} of {len(weight)} labels are wrong: weight {weight[self.corrupted].mean():.2f} on "
            f"average, right ones {weight[~self.corrupted].mean():.2f}. Of wrong-right pairs, {self.found(x):.1%} are "
            "in order."
        )


def _sizes(images: Images, train: int | None, validation: int | None) -> tuple[int, int]:
    usual = {"digits": (1_000, 300), "mnist": (19_000, 1_000)}
    if images.name not in usual and (train is None or validation is None):
        raise ValueError(
            f"train and validation must be given for {images.name!r}; defaults are for {', '.join(usual)}."
        )
    first, second = usual.get(images.name, (0, 0))
    train = first if train is None else whole("train", train)
    validation = second if validation is None else whole("validation", validation)
    if train + validation > len(images.labels):
        raise ValueError(
            f"train={train} and validation={validation} together are more than the {len(images.labels)} images of "
            f"{images.name}. No image is used for both: ask for fewer."
        )
    return train, validation


def cleaning(
    seed: int,
    images: Images | str | os.PathLike | None = None,
    train: int | None = None,
    validation: int | None = None,
    corruption: float = 0.3,
    temperatures: tuple[float, float] = (0.1, 10.0),
    regulariser: float = 1e-3,
    dtype: Any = None,
) -> Instance:
    r"""Data hyper-cleaning, with temperatures uniform on an interval.

    ``x`` holds one number for each training image (initially zero, weight 1/2), ``y`` is ``(pixels, classes)``. Each
    training label is redrawn as a uniformly random class with probability `corruption`, so a share ``1 / classes`` of
    redrawn labels stays right. Equal seeds draw equal images, whatever the corruption.

    **Arguments:**

    - `images`: ``"digits"`` (the default), ``"mnist"``, a folder that holds MNIST, or ``Images``.
    - `train`, `validation`: how many images each level sees, none of them twice: 1,000 and 300 of the digits, 19,000
      and 1,000 of MNIST.
    - `temperatures`: the ends of the interval; `regulariser`: $\lambda$.
    - `dtype`: the dtype of images, ``x`` and ``y``, float32 by default.
    - `seed`: which images, and which labels are wrong.
    - `corruption`: the share of labels to redraw.

    ``instance.train`` gives each level its data. ``instance.test`` holds the images neither saw, for the upper level:
    ``cb.evaluate(problem, solution, cb.Levels(instance.test, instance.train.lower))``.

    **Example:**

    >>> case = cb.gallery.cleaning(0, train=50, validation=20)
    >>> case.problem.x0.shape, case.problem.y0.shape
    ((50,), (64, 10))
    """
    images = digits() if images is None else images if isinstance(images, Images) else load(images)
    train, validation = _sizes(images, train, validation)
    if not 0 <= corruption <= 1:
        raise ValueError(f"corruption must be a probability between 0 and 1, got {corruption!r}.")
    coldest, hottest = (positive("temperatures", end) for end in temperatures)
    regulariser, kind = positive("regulariser", regulariser), np.dtype(np.float32 if dtype is None else dtype)
    if kind not in (np.float32, np.float64):
        raise TypeError(f"dtype must be float32 or float64, got {kind}.")
    if jax.dtypes.canonicalize_dtype(kind) != kind:
        raise ValueError("dtype float64 needs jax.config.update('jax_enable_x64', True) at the start of the program.")
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(images.labels))[: train + validation]
    redrawn = rng.uniform(size=train) < corruption
    clean = images.labels[chosen[:train]]
    labels = np.where(redrawn, rng.integers(images.classes, size=train), clean).astype(np.int32)

    domain = Interval(coldest, hottest)
    crossed = lambda data: Product(Uniform(domain), data)
    pairs = lambda pixels, labels: {"image": pixels.astype(kind), "label": labels.astype(np.int32)}
    seen = pairs(images.images[chosen[:train]], labels) | {"index": np.arange(train, dtype=np.int32)}
    levels = Levels(crossed(pairs(images.images[chosen[train:]], images.labels[chosen[train:]])), crossed(seen))
    lower, y0 = WeightedEntropy(regulariser), jnp.zeros((images.images.shape[1], images.classes), kind)
    problem = Problem(cross_entropy, lower, x0=jnp.zeros(train, kind), y0=y0, domain=domain)
    kept = levels.lower.eta  # pyright: ignore[reportAttributeAccessIssue]
    truth = CleaningTruth(kept["image"], kept["label"], clean, redrawn, labels != clean, lower, images.classes)
    return Instance(problem, levels, crossed(pairs(images.test_images, images.test_labels)), truth)


def accuracy(y: Float[Array | np.ndarray, "m pixels classes"], data: dict[str, Any]) -> Float[np.ndarray, " m"]:
    """The share of images that each classifier gets right."""
    guess = np.argmax(np.einsum("np,mpc->mnc", np.asarray(data["image"]), np.asarray(y)), axis=-1)
    return np.mean(guess == np.asarray(data["label"]), axis=1)


def draw_cleaning(instance: Instance, solution: Any) -> Any:
    """Accuracy on images that no level saw, by temperature; weights of right and wrong labels; smallest weights."""
    truth, figure = instance.truth, shown_figure(13, 4.2)
    scores, weights, shown = figure.subplots(1, 3, width_ratios=(1.2, 1.0, 1.0))
    domain, x = instance.problem.domain, np.asarray(solution.x)
    low, high = (float(np.squeeze(end)) for end in domain.bounds)
    xi = np.geomspace(low, high, 17).astype(np.float32)[1:-1]
    known = np.where(truth.corrupted, -1, 1).astype(x.dtype) * 9  # weights of 0 and 1
    data = instance.test.eta
    scores.plot(
        xi, 100 * accuracy(truth.y(known, xi), data), "--", color="black", lw=1.2, label="wrong labels left out"
    )
    scores.plot(
        xi, 100 * accuracy(solution.policy(jnp.asarray(xi)), data), color=COLOURS[0], lw=2, label="weights found"
    )
    scores.plot(xi, 100 * accuracy(truth.y(0 * x, xi), data), ":", color=COLOURS[1], lw=2, label="all weights equal")
    scores.set(xscale="log", xlabel="temperature", ylabel="test images classified right (%)", title="Accuracy")
    marks = [mark for mark in (0.1, 0.2, 0.5, 1, 2, 5, 10) if xi[0] <= mark <= xi[-1]]
    scores.set_xticks(marks, [f"{mark:g}" for mark in marks])
    scores.set_xticks([], minor=True)
    scores.legend(frameon=False, fontsize="small")

    weight, bins = np.asarray(jax.nn.sigmoid(solution.x)), np.linspace(0, 1, 26)
    for which, colour, label in ((~truth.corrupted, COLOURS[0], "right"), (truth.corrupted, COLOURS[1], "wrong")):
        weights.hist(weight[which], bins, color=colour, alpha=0.7, label=f"{label} label ({which.sum()})")
    weights.set(xlabel="weight of a training image", ylabel="images", title="Weights found")
    weights.legend(frameon=False, fontsize="small")

    rows, columns, side = 3, 4, round(np.sqrt(truth.images.shape[1]))
    for k, image in enumerate(np.argsort(weight)[: rows * columns]):
        row, column = divmod(k, columns)
        left, top = 1.25 * column, 1.5 * row
        pixels = np.asarray(truth.images[image]).reshape(side, side)
        shown.imshow(pixels, cmap="gray_r", extent=(left, left + 1, top + 1, top), vmin=0, vmax=1)
        colour = COLOURS[1] if truth.corrupted[image] else COLOURS[0]
        words = f"“{int(truth.labels[image])}”"
        shown.text(left + 0.5, top + 1.05, words, ha="center", va="top", color=colour)
    shown.set(xlim=(-0.1, 1.25 * columns), ylim=(1.5 * rows, -0.1), title="The least weights, with their labels")
    shown.axis("off")
    tidy(scores)
    tidy(weights)
    return figure
