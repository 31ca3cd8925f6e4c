"""Every numbered statement of docs/theory.md in numbers: bounds hold, sharp ones are attained, refuted ones fail."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.polynomial import chebyshev, legendre

NODES, WEIGHTS = legendre.leggauss(48)
WEIGHTS = WEIGHTS / 2  # contexts are uniform on [-1, 1]
STEEPEST = 4 / (3 * np.sqrt(3))  # the largest third derivative of log cosh


def mean(values):
    return np.tensordot(WEIGHTS, values, 1)


def norm(u):
    """The norm of L2 of a function with values in R^dy, rows of `u` being contexts."""
    return np.sqrt(mean(np.sum(u**2, axis=1)))


def project(phi, A, u):
    """The projection on the span of `phi` in the inner product E[a^T A b], for each column of `u`."""
    n, dy = phi.shape[1], A.shape[1]
    H = np.einsum("k,kij,ka,kb->iajb", WEIGHTS, A, phi, phi).reshape(dy * n, dy * n)
    right = np.einsum("k,kij,kjc,ka->iac", WEIGHTS, A, u, phi).reshape(dy * n, -1)
    return np.einsum("ka,iac->kic", phi, np.linalg.solve(H, right).reshape(dy, n, -1))


def distance(phi, u):
    """The distance in L2 of a function with values in R^dy to the span."""
    root = np.sqrt(WEIGHTS)[:, None]
    return np.linalg.norm(root * (u - phi @ np.linalg.lstsq(root * phi, root * u, rcond=None)[0]))


def largest(phi):
    """Lambda of Lemma 0.1, over the contexts at hand and the ends."""
    return np.sqrt(np.max(np.einsum("ka,ka->k", phi, np.linalg.solve(mean(phi[:, :, None] * phi[:, None]), phi.T).T)))


class Ridges:
    """g = |y|^2/2 + sum_j c_j(xi) log cosh(b_j (x, y) + a_j xi), f = sin(w (x, y) + xi), with x and y in the plane."""

    mu = 1.0

    def __init__(self, seed, bend=0.4, count=3):
        rng = np.random.default_rng(seed)
        self.b = rng.normal(size=(count, 4)) * bend
        self.a = rng.normal(size=count) * 2
        self.c = 1 + 0.5 * np.sin(np.outer(NODES, rng.normal(size=count) * 3))
        self.w = rng.normal(size=4)
        by, all_ = np.linalg.norm(self.b[:, 2:], axis=1), np.linalg.norm(self.b, axis=1)
        self.L1 = 1 + np.sum(1.5 * by * all_)
        self.L2 = STEEPEST * np.sum(1.5 * by * all_**2)
        self.f0, self.f1 = np.linalg.norm(self.w), np.linalg.norm(self.w) ** 2
        self.kappa = self.L1 / self.mu
        self.quasi = (self.L1 + self.mu) ** 2 / (4 * self.L1 * self.mu)
        self.root = np.sqrt(1 + self.kappa**2)
        self.K1 = self.f1 * self.root
        self.K = (1 + self.kappa) * (self.f1 + self.f0 * self.L2 / self.mu)

    def lower(self, x, y):
        """d2 g, D and A at each context."""
        t = np.tanh(y @ self.b[:, 2:].T + self.b[:, :2] @ x + np.outer(NODES, self.a))
        bend = self.c * (1 - t**2)
        by = self.b[:, 2:]
        r = y + (self.c * t) @ by
        return (
            r,
            np.einsum("kj,ji,jl->kil", bend, by, self.b[:, :2]),
            np.eye(2) + np.einsum("kj,ji,jl->kil", bend, by, by),
        )

    def value(self, x, y):
        """G, at each context."""
        return np.sum(y**2, axis=1) / 2 + np.sum(
            self.c * np.log(np.cosh(y @ self.b[:, 2:].T + self.b[:, :2] @ x + np.outer(NODES, self.a))), axis=1
        )

    def upper(self, x, y):
        """f, d1 f and d2 f at each context."""
        angle = y @ self.w[2:] + self.w[:2] @ x + NODES
        return np.sin(angle), np.cos(angle)[:, None] * self.w[:2], np.cos(angle)[:, None] * self.w[2:]

    def at(self, x, y):
        """What section 3 has at a policy: A, the sensitivity, the adjoint and h[y]."""
        _, D, A = self.lower(x, y)
        _, d1, d2 = self.upper(x, y)
        s, v = -np.linalg.solve(A, D), np.linalg.solve(A, d2[:, :, None])
        return SimpleNamespace(A=A, D=D, s=s, v=v, h=mean(d1 + np.einsum("kij,ki->kj", s, d2)), d1=d1, d2=d2)

    def exact(self, x):
        y = np.zeros((NODES.size, 2))
        for _ in range(40):
            r, _, A = self.lower(x, y)
            y = y - np.linalg.solve(A, r[:, :, None])[:, :, 0]
        assert np.abs(r).max() < 1e-12
        return y

    def reduced(self, x, phi):
        W, n = np.zeros((2, phi.shape[1])), phi.shape[1]
        for _ in range(40):
            r, D, A = self.lower(x, phi @ W.T)
            H = np.einsum("k,kij,ka,kb->iajb", WEIGHTS, A, phi, phi).reshape(2 * n, 2 * n)
            gradient = np.einsum("k,ki,ka->ia", WEIGHTS, r, phi)
            W = W - np.linalg.solve(H, gradient.ravel()).reshape(2, n)
        assert np.abs(gradient).max() < 1e-12
        slope = -np.linalg.solve(H, np.einsum("k,kil,ka->ial", WEIGHTS, D, phi).reshape(2 * n, 2)).reshape(2, n, 2)
        return SimpleNamespace(W=W, H=H, y=phi @ W.T, slope=slope, s=np.einsum("ka,ial->kil", phi, slope))

    def gradients(self, x, phi):
        """grad F and grad F_Phi."""
        y, fit = self.exact(x), self.reduced(x, phi)
        _, d1, d2 = self.upper(x, fit.y)
        return self.at(x, y).h, mean(d1 + np.einsum("kij,ki->kj", fit.s, d2))

    def bends(self, phi):
        """M_s, M_sPhi of Lemma 5.3."""
        scale = self.L2 / self.mu
        return scale * self.root**2, scale * self.root * np.sqrt(1 + (largest(phi) * self.kappa) ** 2)


def polynomials(n):
    return legendre.legvander(NODES, n - 1)


def random_basis(seed, n):
    rng = np.random.default_rng(seed)
    return np.cos(np.outer(NODES, rng.normal(size=n) * 3) + rng.uniform(0, 6, n))


def slope(function, x, step=1e-5):
    """Derivatives along both coordinates of x, on the last axis."""
    return np.stack([(function(x + step * e) - function(x - step * e)) / (2 * step) for e in np.eye(2)], axis=-1)


def operator(field):
    """The norm of a field of matrices as a map from R^dx to L2."""
    return np.sqrt(np.linalg.eigvalsh(mean(np.einsum("kil,kim->klm", field, field)))[-1])


def test_members_of_the_span_are_bounded_by_their_mean_square():
    rng = np.random.default_rng(0)
    for seed, n in ((0, 2), (1, 4), (2, 7)):
        phi = random_basis(seed, n)
        gram = mean(phi[:, :, None] * phi[:, None])
        Lambda, coarse = largest(phi), np.linalg.norm(phi, axis=1).max() / np.sqrt(np.linalg.eigvalsh(gram)[0])
        assert np.sqrt(n) <= Lambda <= coarse
        assert largest(phi @ rng.normal(size=(n, n))) == pytest.approx(Lambda)
        ratios = [np.linalg.norm(u, axis=1).max() / norm(u) for u in (phi @ rng.normal(size=(n, 2)) for _ in range(50))]
        assert max(ratios) <= Lambda * (1 + 1e-9)
        there = np.argmax(np.einsum("ka,ka->k", phi, np.linalg.solve(gram, phi.T).T))
        worst = phi @ np.linalg.solve(gram, phi[there])[:, None]
        assert np.abs(worst).max() / norm(worst) == pytest.approx(Lambda)


def test_a_sensitivity_moves_with_the_point():
    share = 0.0
    for seed in range(4):
        problem, rng = Ridges(seed, bend=0.4, count=1), np.random.default_rng(seed)
        for _ in range(20):
            (x1, x2), (y1, y2) = rng.normal(size=(2, 2)), rng.normal(size=(2, NODES.size, 2))
            one, two = problem.at(x1, y1), problem.at(x2, y2)
            inner = one.D - two.D + np.einsum("kij,kjl->kil", one.A - two.A, two.s)
            np.testing.assert_allclose(one.s - two.s, -np.linalg.solve(one.A, inner), atol=1e-12)
            way = np.sqrt(np.sum((x1 - x2) ** 2) + np.sum((y1 - y2) ** 2, axis=1))
            ratio = np.linalg.norm(one.s - two.s, axis=(1, 2), ord=2) / way
            share = max(share, ratio.max() / (problem.L2 / problem.mu * problem.root))
    assert 0.1 < share <= 1


@pytest.mark.parametrize("seed", range(3))
def test_the_exact_policy_and_its_sensitivity(seed):
    problem, x = Ridges(seed), np.random.default_rng(seed).normal(size=2)
    found = problem.at(x, problem.exact(x))
    np.testing.assert_allclose(slope(problem.exact, x), found.s, atol=1e-8)
    assert 0 < np.linalg.norm(found.s, axis=(1, 2), ord=2).max() <= problem.kappa
    np.testing.assert_allclose(slope(lambda x: mean(problem.upper(x, problem.exact(x))[0]), x), found.h, atol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_the_reduced_lower_level_and_its_derivatives(seed):
    problem, x, phi = Ridges(seed), np.random.default_rng(seed).normal(size=2), random_basis(seed, 3)
    fit = problem.reduced(x, phi)
    gram = np.linalg.eigvalsh(mean(phi[:, :, None] * phi[:, None]))
    low, *_, high = np.linalg.eigvalsh(fit.H)
    assert problem.mu * gram[0] <= low
    assert high <= problem.L1 * gram[-1] <= problem.L1 * np.sum(phi**2, axis=1).max()

    def lower(W):
        return mean(problem.value(x, phi @ W.reshape(2, -1).T))

    W, step = fit.W.ravel(), 1e-3
    tries = np.random.default_rng(9).normal(size=(20, W.size))
    assert all(lower(W + step * t) > lower(W) for t in tries)
    second = np.array([(lower(W + step * t) - 2 * lower(W) + lower(W - step * t)) / step**2 for t in tries])
    np.testing.assert_allclose(second, np.einsum("ti,ij,tj->t", tries, fit.H, tries), rtol=1e-4)
    np.testing.assert_allclose(slope(lambda x: problem.reduced(x, phi).W, x), fit.slope, atol=1e-7)
    here = problem.at(x, fit.y)
    np.testing.assert_allclose(fit.s, project(phi, here.A, here.s), atol=1e-10)
    residual = np.einsum("kij,kjl->kil", here.A, fit.s) + here.D
    np.testing.assert_allclose(np.einsum("k,kil,ka->ial", WEIGHTS, residual, phi), 0, atol=1e-12)
    assert operator(fit.s) <= problem.kappa
    reduced = problem.gradients(x, phi)[1]
    np.testing.assert_allclose(
        slope(lambda x: mean(problem.upper(x, problem.reduced(x, phi).y)[0]), x), reduced, atol=1e-8
    )


def test_projections_in_a_weighted_norm_are_bounded():
    rng = np.random.default_rng(1)
    closest = 0.0
    for seed in range(40):
        phi, kappa = random_basis(seed, 3), 9.0
        turn = np.linalg.qr(rng.normal(size=(NODES.size, 2, 2)))[0]
        A = np.einsum("kij,kj,klj->kil", turn, rng.choice([1.0, kappa], size=(NODES.size, 2)), turn)
        u = rng.normal(size=(NODES.size, 2, 1))
        Pu = project(phi, A, u)
        quasi = (kappa + 1) / (2 * np.sqrt(kappa))
        assert norm(Pu[:, :, 0]) <= quasi * norm(u[:, :, 0])
        assert norm((u - Pu)[:, :, 0]) <= quasi * distance(phi, u[:, :, 0])
        closest = max(closest, norm((u - Pu)[:, :, 0]) / distance(phi, u[:, :, 0]))
    assert closest > 1.0001  # the weighted projection is not the nearest point


def test_quasi_optimality_with_the_sharp_constant():
    for seed in range(6):
        problem, x, phi = Ridges(seed, bend=0.8), np.random.default_rng(seed).normal(size=2), random_basis(seed, 2)
        y = problem.exact(x)
        error, best = norm(problem.reduced(x, phi).y - y) ** 2, distance(phi, y) ** 2
        assert best <= error <= problem.quasi * best
        assert problem.quasi <= problem.kappa
    for mu, L in ((1.0, 4.0), (0.3, 50.0)):  # two contexts with curvatures mu and L, one function
        chance, curvature, y = np.array([L, mu]) / (L + mu), np.array([mu, L]), np.array([1.0, -1.0])
        fitted = chance @ (curvature * y) / (chance @ curvature)
        error, best = chance @ (y - fitted) ** 2, chance @ (y - chance @ y) ** 2
        assert error == pytest.approx((L + mu) ** 2 / (4 * L * mu) * best)


@pytest.mark.parametrize("seed", range(4))
def test_the_gap_identity(seed):
    problem, x, phi = Ridges(seed), np.random.default_rng(seed).normal(size=2), random_basis(seed, 3)
    full, reduced = problem.gradients(x, phi)
    fit = problem.reduced(x, phi)
    bar, star = problem.at(x, fit.y), problem.at(x, problem.exact(x))
    left_v, left_s = bar.v - project(phi, bar.A, bar.v), bar.s - project(phi, bar.A, bar.s)
    product = np.einsum("k,kio,kij,kjl->l", WEIGHTS, left_v, bar.A, left_s)
    np.testing.assert_allclose(full - reduced, star.h - bar.h + product, atol=1e-11)
    assert np.linalg.norm(product) > 1e-5
    exact = np.column_stack([phi, problem.exact(x)])  # the policy at x is in the span: the first part vanishes
    full, reduced = problem.gradients(x, exact)
    left_v, left_s = star.v - project(exact, star.A, star.v), star.s - project(exact, star.A, star.s)
    product = np.einsum("k,kio,kij,kjl->l", WEIGHTS, left_v, star.A, left_s)
    np.testing.assert_allclose(full - reduced, product, atol=1e-10)
    assert np.linalg.norm(product) > 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_with_policy_adjoint_and_sensitivity(seed):
    problem, x, phi = Ridges(seed), np.random.default_rng(seed).normal(size=2), random_basis(seed, 2)
    full, reduced = problem.gradients(x, phi)
    fit, y = problem.reduced(x, phi), problem.exact(x)
    bar = problem.at(x, fit.y)
    left_v, left_s = bar.v - project(phi, bar.A, bar.v), bar.s - project(phi, bar.A, bar.s)
    size = lambda u: np.sqrt(np.einsum("k,kil,kij,kjl->", WEIGHTS, u, bar.A, u))
    error = mean(np.linalg.norm(fit.y - y, axis=1))
    policy = np.linalg.norm(problem.at(x, y).h - bar.h)
    small = problem.root * (problem.f1 + problem.f0 * problem.L2 / problem.mu)
    assert 1e-3 * small * error < policy <= small * error <= problem.K * error
    assert np.linalg.norm(full - reduced) <= problem.K * error + size(left_v) * size(left_s)
    assert np.linalg.norm(full) <= np.linalg.norm(reduced) + problem.K * error + size(left_v) * size(left_s)


@pytest.mark.parametrize("seed", range(4))
def test_policy_and_sensitivity_near_the_span_bound_the_gap_linearly(seed):
    problem, x, phi = Ridges(seed), np.random.default_rng(seed).normal(size=2), random_basis(seed, 3)
    for richer in (phi, np.column_stack([phi, problem.exact(x)])):
        full, reduced = problem.gradients(x, richer)
        y, fit = problem.exact(x), problem.reduced(x, richer)
        star, error = problem.at(x, y), norm(fit.y - y)
        far = operator(star.s - project(richer, np.broadcast_to(np.eye(2), star.A.shape), star.s))
        moved = np.sqrt(problem.quasi) * (far + problem.L2 / problem.mu * problem.root * error)
        assert 0.01 * moved < operator(fit.s - star.s) <= moved
        assert np.linalg.norm(full - reduced) <= problem.K1 * error + problem.f0 * moved


def test_the_counterexample_in_closed_form():
    phi, one = np.stack([np.ones_like(NODES), NODES], axis=1), np.ones((NODES.size, 1, 1))
    s, v = (NODES**2)[:, None, None], np.exp(NODES)[:, None, None]
    policy = (1 + NODES)[:, None]
    assert distance(phi, policy) < 1e-12
    full, reduced = mean(s * v).item(), mean(project(phi, one, s) * v).item()
    assert full == pytest.approx((np.e - 5 / np.e) / 2)
    assert full - reduced == pytest.approx((np.e - 7 / np.e) / 3)
    assert full - reduced == pytest.approx(0.0477, abs=5e-5)  # Proposition 1 has 0 on its right-hand side
    assert mean((s - project(phi, one, s)) * (v - project(phi, one, v))).item() == pytest.approx(full - reduced)
    for x in (-2.0, 0.1, 1.0):
        assert distance(phi, policy + x * s[:, :, 0]) == pytest.approx(abs(x) * np.sqrt(4 / 45))
    assert full - reduced <= np.e * np.sqrt(4 / 45)  # Theorem 5.5 (1), with every tau and M2 -> 0


@pytest.mark.parametrize("seed", range(4))
def test_the_gap_is_bounded_by_the_error_and_its_derivative(seed):
    problem, x, phi = Ridges(seed), np.random.default_rng(seed).normal(size=2), random_basis(seed, 3)
    full, reduced = problem.gradients(x, phi)
    y, fit = problem.exact(x), problem.reduced(x, phi)
    slide = fit.s - problem.at(x, y).s
    np.testing.assert_allclose(slope(lambda x: problem.reduced(x, phi).y - problem.exact(x), x), slide, atol=1e-7)
    bound = problem.K1 * norm(fit.y - y) + problem.f0 * operator(slide)
    assert np.linalg.norm(full - reduced) <= bound
    richer = np.column_stack([phi, y])  # the policy is exact here, and the first term alone is no bound
    full, reduced = problem.gradients(x, richer)
    assert np.linalg.norm(full - reduced) > 1e5 * problem.K1 * norm(problem.reduced(x, richer).y - y)


def test_landau_on_the_line_half_line_and_interval():
    rng = np.random.default_rng(3)
    t = np.linspace(0, 40, 8001)
    for _ in range(20):  # curves in R^4 with frequencies at most 3
        omega, phase, size = rng.uniform(0.2, 3, (4, 6)), rng.uniform(0, 6, (4, 6)), rng.normal(size=(4, 6))
        angle = omega[:, :, None] * t + phase[:, :, None]
        curve, first, second = (
            np.linalg.norm(np.einsum("ij,ijt->it", size * omega**k, wave(angle)), axis=0)
            for k, wave in ((0, np.sin), (1, np.cos), (2, np.sin))
        )
        ratio = (first.max() / np.sqrt(curve.max() * second.max())) ** 2
        assert 0.1 < ratio < 2 * (1 + 1e-3)
    # Landau's curve, of parabolas with |f| <= 1/2, |f''| = 1: the constant on the line is attained
    saw = lambda t: np.where(np.floor(t / 2 + 0.5) % 2 == 0, 1, -1) * (0.5 - (t - 2 * np.floor(t / 2 + 0.5)) ** 2 / 2)
    t = np.linspace(-8, 8, 160001)
    assert np.abs(saw(t)).max() == pytest.approx(0.5)
    assert np.abs(np.gradient(saw(t), t)).max() == pytest.approx(np.sqrt(2 * 0.5 * 1), rel=1e-3)
    # On an interval of length 2 sqrt(delta / M2), here with delta = 1 and M2 = 4, a parabola attains the constant 2.
    parabola = lambda t: 2 * (1 - t) ** 2 - 1
    t = np.linspace(0, 1, 1001)
    assert np.abs(parabola(t)).max() == 1
    assert np.abs(np.gradient(parabola(t), t, edge_order=2)).max() == pytest.approx(2 * np.sqrt(1 * 4))


def test_sensitivities_are_lipschitz_with_the_stated_constants():
    shares = []
    for seed in range(4):
        problem, phi, rng = Ridges(seed, bend=0.4, count=1), random_basis(seed, 2), np.random.default_rng(seed)
        stated, seen = np.array(problem.bends(phi)), np.zeros(2)
        for _ in range(15):
            x, way = rng.normal(size=2) * 2, rng.normal(size=2) * 1e-3
            one, two = (problem.at(x + t * way, problem.exact(x + t * way)).s for t in (1, -1))
            change = np.linalg.norm(one - two, axis=(1, 2), ord=2).max()
            galerkin = operator(problem.reduced(x + way, phi).s - problem.reduced(x - way, phi).s)
            seen = np.maximum(seen, np.array([change, galerkin]) / (2 * np.linalg.norm(way)))
        assert np.all(seen <= stated)
        assert sum(stated) <= (1 + largest(phi)) * problem.L2 / problem.mu * problem.root**2
        shares.append(seen / stated)
    assert np.all(np.max(shares, axis=0) > [0.1, 0.01])


def test_with_a_quadratic_lower_level_the_constant_is_free_of_the_basis():
    curvature = 2 + np.sin(3 * NODES)  # g = curvature y^2 / 2 - sin(x + 2 xi) y, so L_g2 = 1 and mu = 1
    A, mu = curvature[:, None, None], 1.0
    sensitivity = lambda x: (np.cos(x + 2 * NODES) / curvature)[:, None, None]
    for n in (1, 2, 4):
        phi = random_basis(n, n)
        slide = lambda x, phi=phi: (project(phi, A, sensitivity(x)) - sensitivity(x))[:, :, 0]
        seen = max(norm(slide(x + 1e-4) - slide(x - 1e-4)) / 2e-4 for x in np.linspace(0, 6, 25))
        assert 0.03 / mu < seen <= 1 / mu


@pytest.mark.parametrize("seed", range(3))
def test_the_gap_is_bounded_by_the_policy_error_nearby(seed):
    problem, x, phi = Ridges(seed, bend=0.3), np.random.default_rng(seed).normal(size=2), polynomials(3)
    full, reduced = problem.gradients(x, phi)
    M2 = sum(problem.bends(phi))
    way = (full - reduced) / np.linalg.norm(full - reduced)
    error = lambda t: norm(problem.reduced(x + t * way, phi).y - problem.exact(x + t * way))
    ratios = []
    for tau in (0.01, 0.03, 0.1, 0.3):
        delta = max(error(t) for t in np.linspace(-tau, tau, 9))
        ratios.append(
            np.linalg.norm(full - reduced) / (problem.K1 * error(0) + problem.f0 * (delta / tau + M2 * tau / 2))
        )
    assert max(ratios) <= 1
    delta = max(error(t) for t in np.linspace(-1, 1, 41))
    assert np.sqrt(2 * delta / M2) <= 1  # the part of the line that part (2) asks about
    assert np.linalg.norm(full - reduced) <= problem.K1 * delta + problem.f0 * np.sqrt(2 * M2 * delta)


def wave(delta, x, sign):
    """The lower level of Proposition 6.1 at q = sign: the policy and its derivative, by Newton's method."""
    root, y = np.sqrt(delta), np.zeros_like(x)
    for _ in range(30):
        bend = 1 + root * sign * np.sin(x / root) * np.sin(y / root)
        y = y - (y - delta * sign * np.sin(x / root) * np.cos(y / root)) / bend
    return y, root * sign * np.cos(x / root) * np.cos(y / root) / bend


def constants(delta):
    """Of Proposition 6.1: mu, L_g1, L_g2 and the paper's K (L_f0 = 1, L_f1 = 0)."""
    mu, L1, L2 = 1 - np.sqrt(delta), 1 + np.sqrt(delta), np.sqrt(2)
    return mu, L1, L2, L2 / mu * (1 + L1 / mu)


@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-6])
def test_the_square_root_cannot_be_improved(delta):
    root = np.sqrt(delta)
    x = root * np.linspace(-np.pi, np.pi, 401)
    (up, up_slope), (down, down_slope) = wave(delta, x, 1.0), wave(delta, x, -1.0)
    assert 0.8 * delta < np.sqrt((up**2 + down**2) / 2).max() <= delta
    # One function, the constant: zero solves the reduced lower level, so F_Phi = 0; F = E[q y*].
    np.testing.assert_allclose(up + down, 0, atol=1e-14)
    derivative = (up_slope - down_slope) / 2
    assert derivative[200] == pytest.approx(root)
    mu, L1, L2, _ = constants(delta)
    X, Y = np.meshgrid(np.linspace(0, 2 * np.pi, 61), np.linspace(0, 2 * np.pi, 61))
    ss, cc = np.sin(X) * np.sin(Y), np.cos(X) * np.cos(Y)
    hessian = np.stack([root * ss, -root * cc, -root * cc, 1 + root * ss], axis=-1).reshape(*X.shape, 2, 2)
    assert np.linalg.norm(hessian, ord=2, axis=(-2, -1)).max() <= L1 + 1e-12
    assert hessian[..., 1, 1].min() >= mu - 1e-12
    third = 0.0
    for angle in np.linspace(0, np.pi, 61):  # the third derivative along (cos, sin), which is the norm of the tensor
        plus, minus = np.cos(angle) + np.sin(angle), np.cos(angle) - np.sin(angle)
        third = max(third, np.abs(minus**3 * np.sin(X - Y) - plus**3 * np.sin(X + Y)).max() / 2)
    assert 0.99 * L2 < third <= L2 + 1e-12
    M2 = 2 * L2 / mu * (1 + (L1 / mu) ** 2)
    assert 0.1 * np.sqrt(2 * M2 * delta) < np.abs(derivative).max() <= np.sqrt(2 * M2 * delta)
    # The quadratic variant, y* = delta sin(x / root) q: M2 = 1, and a share 1/sqrt(2) of the bound is attained.
    assert np.abs(root * np.cos(x / root)).max() == pytest.approx(np.sqrt(2 * 1 * delta) / np.sqrt(2))


def test_theorem_1_as_printed_is_violated():
    delta = 1e-3
    mu, L1, _, K = constants(delta)
    eps = 2 * K * np.sqrt(L1 / mu) * delta  # where the printed condition on the basis holds, at every x
    x = np.linspace(-1, 1, 2001) * 4
    worst = max(np.mean([wave(delta, x, q)[0] ** 2 for q in (1.0, -1.0)], axis=0))
    assert worst <= eps**2 * mu / (4 * K**2 * L1)
    gradient = wave(delta, np.zeros(1), 1.0)[1].item()  # while the gradient of F_Phi is zero everywhere
    assert gradient > 5 * eps
    # One function more, q itself, holds every function of a context in {-1, 1}.
    assert np.linalg.matrix_rank(np.array([[1, 1], [1, -1]])) == 2


def test_more_derivatives_give_a_better_exponent():
    favard = {1: np.pi / 2, 2: np.pi**2 / 8, 3: np.pi**3 / 24, 4: 5 * np.pi**4 / 384}
    rng = np.random.default_rng(4)
    t = np.linspace(0, 60, 20001)
    for _ in range(10):
        omega, size, phase = rng.uniform(0.2, 3, (2, 5)), rng.normal(size=(2, 5)), rng.uniform(0, 6, (2, 5))
        angle = omega[:, :, None] * t + phase[:, :, None]
        orders = [np.einsum("ij,ijt->it", size * omega**k, np.sin(angle + k * np.pi / 2)) for k in range(5)]
        sups = [np.linalg.norm(values, axis=0).max() for values in orders]
        for k in (2, 3, 4):
            best = favard[k - 1] / favard[k] ** (1 - 1 / k)
            assert best <= np.sqrt(2) + 1e-12
            assert sups[1] <= best * sups[0] ** (1 - 1 / k) * sups[k] ** (1 / k) * 1.001
        delta, strip = sups[0], 1.0
        B = max(np.linalg.norm(np.sum(np.abs(size) * np.cosh(omega * strip), axis=1)), np.e * delta)
        assert sups[1] <= np.e * delta * np.log(B / delta) / strip
    for k in (2, 3, 4):  # delta sin(x delta^(-1/k)): error delta, derivative delta^(1 - 1/k), k-th derivative 1
        for delta in (1e-2, 1e-6):
            frequency = delta ** (-1 / k)
            assert delta * frequency == pytest.approx(delta ** (1 - 1 / k))
            assert delta * frequency**k == pytest.approx(1)


class Peak:
    """g = (y - a(x, xi))^2 / 2 with a = scale / (2.5 + sin(x)/2 - xi), f = cos(y + x xi): a pole near the contexts."""

    scale, mu, f0, f1 = 1.0, 1.0, 2**0.5, 2.0
    grid = np.linspace(-np.pi, np.pi, 121)

    def policy(self, x):
        return self.scale / (2.5 + np.sin(x) / 2 - NODES)

    def sensitivity(self, x):
        return -(self.policy(x) ** 2) * np.cos(x) / (2 * self.scale)

    def __init__(self):
        bend = max(np.abs(self.sensitivity(x + 1e-4) - self.sensitivity(x - 1e-4)).max() / 2e-4 for x in self.grid)
        self.L2 = 1.1 * bend
        self.L1 = np.sqrt(1 + max(np.abs(self.sensitivity(x)).max() for x in self.grid) ** 2) * 1.05
        self.K1 = self.f1 * np.sqrt(1 + self.L1**2)
        self.M2 = self.L2

    def error(self, phi):
        return max(distance(phi, self.policy(x)[:, None]) for x in self.grid)

    def gradients(self, phi, x):
        one, y, s = np.ones((NODES.size, 1, 1)), self.policy(x), self.sensitivity(x)
        fit, slide = (project(phi, one, u[:, None, None])[:, 0, 0] for u in (y, s))
        gradient = lambda y, s: -mean(np.sin(y + x * NODES) * (NODES + s))
        return gradient(y, s), gradient(fit, slide)

    def stationary(self, phi, eps):
        """Decisions on both sides of stationary points of the reduced problem, where its gradient is about eps/2."""
        reduced = lambda x: self.gradients(phi, x)[1]
        for low, high in pairwise(self.grid):
            if reduced(low) * reduced(high) < 0:
                for _ in range(40):
                    half = (low + high) / 2
                    low, high = (half, high) if reduced(low) * reduced(half) > 0 else (low, half)
                for step in (-1.0, 1.0):
                    while abs(reduced(low + step)) > eps / 2:
                        step *= 0.8
                    yield low + step


def test_theorem_1_corrected_leads_to_stationary_points():
    problem = Peak()
    sizes = []
    for eps in (1.0, 0.1, 0.01):
        delta = min(eps / (4 * problem.K1), eps**2 / (32 * problem.f0**2 * problem.M2))
        quasi = (problem.L1 + 1) ** 2 / (4 * problem.L1)
        size = next(n for n in range(1, 40) if quasi * problem.error(polynomials(n)) ** 2 <= delta**2)
        assert problem.K1 * delta <= eps / 4 * (1 + 1e-12)
        assert problem.f0 * np.sqrt(2 * problem.M2 * delta) <= eps / 4 * (1 + 1e-12)
        full, reduced = np.array([problem.gradients(polynomials(size), x) for x in problem.grid]).T
        assert np.abs(full - reduced).max() <= eps / 2
        found = np.array([problem.gradients(polynomials(size), x) for x in problem.stationary(polynomials(size), eps)])
        assert len(found) >= 2
        assert 0.2 * eps < np.sqrt(np.mean(found[:, 1] ** 2)) <= eps / 2  # over a decision drawn from these
        assert np.sqrt(np.mean(found[:, 0] ** 2)) <= eps
        sizes.append(size)
    assert sizes == sorted(sizes)
    assert sizes[-1] < 25
    for delta in (1e-2, 1e-4):  # the family of Proposition 6.1, where one function suffices from eps on
        mu, L1, L2, _ = constants(delta)
        eps = np.sqrt(32 * 2 * L2 / mu * (1 + (L1 / mu) ** 2) * delta)
        assert eps / 20 < wave(delta, np.zeros(1), 1.0)[1].item() <= eps / 4
    # the step of the printed proof: two vectors of squared length 1/2 may add up to one of squared length 2
    a = b = np.sqrt(1 / 2)
    assert (a + b) ** 2 == pytest.approx(2 * (a**2 + b**2))


def test_a_random_decision_is_judged_by_the_mean_of_its_bounds():
    rng = np.random.default_rng(5)
    problem, phi = Ridges(1), random_basis(1, 2)
    full, right = [], []
    for x in rng.normal(size=(12, 2)):
        gradient, reduced = problem.gradients(x, phi)
        fit, y = problem.reduced(x, phi), problem.exact(x)
        bar = problem.at(x, fit.y)
        size = lambda u, A=bar.A: np.sqrt(np.einsum("k,kil,kij,kjl->", WEIGHTS, u, A, u))
        parts = (
            np.linalg.norm(reduced), problem.K * norm(fit.y - y),
            size(bar.v - project(phi, bar.A, bar.v)) * size(bar.s - project(phi, bar.A, bar.s)),
        )  # fmt: skip
        full.append(np.linalg.norm(gradient))
        right.append(parts)
    assert np.sqrt(np.mean(np.square(full))) <= np.sum(np.sqrt(np.mean(np.square(right), axis=0)))


@pytest.mark.parametrize(("d", "rho", "c"), [(1, 1.5, 1.0), (1, 3.0, 0.2), (2, 2.0, 0.5)])
def test_chebyshev_needs_a_power_of_the_logarithm(d, rho, c):
    B, quasi, K1, f0, bend, dy = 2.0, 3.0, 4.0, 1.5, 6.0, 2
    first, ratios = np.sqrt(quasi * dy) * B * d * (2 * rho / (rho - 1)) ** d, []
    for eps in 10.0 ** -np.arange(1, 13):
        b = min(1 / (4 * K1), np.sqrt(c) / (64 * f0**2 * bend)) / first
        peak = (2 * d / (np.e * np.log(rho))) ** d
        t = int(np.ceil(2 / np.log(rho) * np.log(max(peak, 1) / (b * eps**2))))
        N = t**d
        M2 = bend * (1 + N / np.sqrt(c))
        tail = B * (2 * rho / (rho - 1)) ** d * -np.expm1(d * np.log1p(-(rho**-t)))
        assert np.sqrt(quasi * dy) * tail <= min(eps / (4 * K1), eps**2 / (32 * f0**2 * M2))
        ratios.append(N / np.log(1 / eps) ** d)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] > 1


def test_with_algebraic_rates_the_number_of_functions_is_squared():
    def needed(tolerance):
        """The cells that bring xi -> xi within a tolerance: the error is 1 / (sqrt(3) N), at any x with |sin x| = 1."""
        sizes = 2.0 ** np.arange(0, 90)
        return sizes[np.argmax(1 / (np.sqrt(3) * sizes) <= tolerance(sizes))]

    for N in (2, 5, 11):
        edges = np.linspace(-1, 1, N + 1)
        within = np.mean([(b - a) ** 2 / 12 for a, b in pairwise(edges)])
        assert np.sqrt(within) == pytest.approx(1 / (np.sqrt(3) * N))
    eps = np.array([1e-2, 1e-5])
    rate = lambda rule: -np.diff(np.log([needed(lambda n, e=e: rule(n, e)) for e in eps]))[0] / np.diff(np.log(eps))[0]
    assert rate(lambda n, e: e + 0 * n) == pytest.approx(1, abs=0.15)
    assert rate(lambda n, e: e**2 / 8 + 0 * n) == pytest.approx(2, abs=0.15)
    assert rate(lambda n, e: e**2 / (8 * (1 + np.sqrt(n)))) == pytest.approx(4, abs=0.15)


def test_chebyshev_coefficients_and_tails():
    rho = 1.6
    ellipse = (rho * np.exp(1j * NODES * np.pi) + np.exp(-1j * NODES * np.pi) / rho) / 2
    for function in (lambda z: 1 / (2 - z), lambda z: np.cos(20 * z), lambda z: np.exp(3 * z)):
        a = chebyshev.chebinterpolate(function, 120)
        t = np.exp(1j * np.linspace(0, 2 * np.pi, 4000))
        M = np.abs(function((rho * t + 1 / (rho * t)) / 2)).max()
        k = np.arange(a.size)
        assert np.all(np.abs(a) <= np.where(k == 0, 1, 2) * M * rho**-k + 1e-12)
        x = np.linspace(-1, 1, 501)
        for n in (2, 6, 12):
            rest = np.abs(function(x) - chebyshev.chebval(x, a[: n + 1])).max()
            assert rest <= M * 2 * rho / (rho - 1) * rho ** -(n + 1)
    assert np.abs(np.real(ellipse)).max() <= (rho + 1 / rho) / 2
    a = np.abs(chebyshev.chebinterpolate(lambda z: np.cos(20 * z), 120))
    assert a[18] > 100 * 2 * 1 * rho**-18  # the bound on the real projection, M = 1, is no bound
    for m, n in ((1, 3), (2, 3), (3, 5)):  # a_k = prod 2 rho^-k_i, at (1, ..., 1), attains the tail
        inside = (2 * np.sum(rho ** -np.arange(n + 1.0))) ** m
        rest = (2 * np.sum(rho ** -np.arange(400.0))) ** m - inside
        tail = (2 * rho / (rho - 1)) ** m * (1 - (1 - rho ** -(n + 1)) ** m)
        printed = (2 / (rho - 1)) ** m * (1 - (1 - rho**-n) ** m)
        assert rest == pytest.approx(tail)
        assert tail <= m * (2 * rho / (rho - 1)) ** m * rho ** -(n + 1) * (1 + 1e-12)
        assert printed == pytest.approx(tail) if m == 1 else printed < 0.7 * tail


def test_gram_matrices_of_chebyshev_polynomials():
    nodes, weights = legendre.leggauss(128)
    found = []
    for n in range(2, 101):
        T = chebyshev.chebvander(nodes, n - 1)
        found.append(n * np.linalg.eigvalsh(T.T * weights / 2 @ T)[0])
    assert min(found) >= 3 / 20
    assert (round(min(found), 2), round(max(found), 2)) == (0.67, 0.93)
    ends = np.array([-1.0, 0.3, 1.0])
    for n in (2, 5, 9):  # Lambda is n, in one dimension, for the uniform law
        T, at = chebyshev.chebvander(nodes, n - 1), chebyshev.chebvander(ends, n - 1)
        sizes = np.sqrt(np.einsum("ka,ka->k", at, np.linalg.solve(T.T * weights / 2 @ T, at.T).T))
        np.testing.assert_allclose(sizes[[0, 2]], n)
        assert sizes[1] < n
        tilted = weights / 2 * (0.4 + 1.2 * (nodes > 0))  # a density of at least 0.4 times the uniform one
        gram = T.T * tilted @ T
        assert np.linalg.eigvalsh(gram)[0] >= 0.4 * 3 / (20 * n)
        assert np.sqrt(np.einsum("ka,ka->k", at, np.linalg.solve(gram, at.T).T)).max() <= n / np.sqrt(0.4)
    half = chebyshev.chebvander(nodes / 2, 9)  # contexts on the middle half of the interval
    assert np.linalg.eigvalsh(half.T * weights / 2 @ half)[0] == pytest.approx(2e-10, rel=0.1)
