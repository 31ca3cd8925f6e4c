"""Kernel features and learned directions as recipes: closed forms, options, and what they say when misused."""

import jax.numpy as jnp
import numpy as np
import pytest

import cobilevel as cb
from cobilevel.basis import basis_from_json, basis_to_json, kernel_profile, kernel_slope, same_recipe

BOX = cb.Box([0.0, 0.0, 0.0], [2.0, 2.0, 2.0])
XI = np.random.default_rng(0).uniform(0, 2, (50, 3))


def test_kernel_features_are_kernels_at_landmarks():
    """Two landmarks, mixed by the identity: the kernel itself, after the constant, on the reference cube."""
    landmarks = np.array([[0.0, 0.5], [0.2, -0.3]])
    axes = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    basis = cb.KernelFeatures(3, axes=axes, landmarks=landmarks, table=np.eye(2))
    z = (XI - 1) @ axes
    wanted = np.exp(-np.sum((z[:, None] - landmarks) ** 2, axis=-1) / 2)
    found = np.asarray(basis.fit(BOX, jnp.asarray(XI))(XI))
    assert np.allclose(found, np.concatenate([np.ones((50, 1)), wanted], axis=1), atol=1e-6)


@pytest.mark.parametrize("kernel", ["gaussian", "matern"])
def test_slopes_of_kernels(kernel):
    q, h = np.linspace(0.1, 9, 50), 1e-6
    slope = (kernel_profile(kernel, q + h) - kernel_profile(kernel, q - h)) / (2 * h)
    assert np.allclose(kernel_slope(kernel, q), slope, atol=1e-8)
    assert kernel_profile(kernel, np.zeros(1)) == pytest.approx(1)


def test_rotated_is_its_basis_at_turned_contexts():
    axes, shift = np.array([[0.5], [0.5], [0.0]]), np.array([0.25])
    basis = cb.Rotated(1, cb.Chebyshev(4), axes=axes, shift=shift)
    z = np.clip((XI - 1) @ axes + shift, -1, 1)[:, 0]
    found = np.asarray(basis.fit(BOX, jnp.asarray(XI))(XI))
    assert np.allclose(found, np.cos(np.arange(4) * np.arccos(z)[:, None]), atol=1e-5)


def test_recipes_are_kept_and_forgotten():
    learned = cb.KernelFeatures(3, kernel="matern", axes=np.eye(3), landmarks=XI[:2], table=np.eye(2))
    again = basis_from_json(basis_to_json(learned))
    assert np.allclose(again.landmarks, XI[:2])
    assert again.learned
    assert same_recipe(again, cb.KernelFeatures(3, kernel="matern"))
    assert not same_recipe(again, cb.KernelFeatures(3))
    turned = cb.Rotated(1, cb.Chebyshev(4), axes=np.ones((3, 1)), shift=np.zeros(1))
    assert same_recipe(basis_from_json(basis_to_json(turned)), cb.Rotated(1, cb.Chebyshev(4)))
    assert repr(learned.forgotten()) == "KernelFeatures(3, kernel='matern')"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: cb.KernelFeatures(1), "n must be a whole number of at least 2"),
        (lambda: cb.KernelFeatures(5, kernel="sinc"), "one of gaussian, matern"),
        (lambda: cb.KernelFeatures(5, metric="far"), "one of isotropic, coordinates, directions"),
        (lambda: cb.KernelFeatures(5, scale=-1.0), "scale must be positive"),
        (lambda: cb.Rotated(0), "k must be a whole number"),
        (lambda: cb.KernelFeatures(5).fit(BOX, XI), "must first learn its functions from a problem"),
        (lambda: cb.Rotated(1).fit(BOX, XI)(XI), "must first learn its functions from a problem"),
    ],
)
def test_misuse(make, words):
    with pytest.raises((ValueError, RuntimeError), match=words):
        make()


def test_rotated_takes_families_alone():
    with pytest.raises(TypeError, match="family such as"):
        cb.Rotated(2, cb.Neural(4))
