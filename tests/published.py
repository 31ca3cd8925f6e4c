"""The published updates of all solvers in plain NumPy, on one small problem whose derivatives are written out by hand.

The problem is not quadratic in ``y``; its two levels have samples of their own, 24 and 20. Which rows make up which
batch is listed beforehand; ``rows_of_batch`` has the library take the same ones.
"""

from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from cobilevel.ground.keys import below, derived, hashed
from cobilevel.reduction import RowIndex

STEPS, SMALL, ROWS = 5, 8, {"upper": 20, "lower": 24}
EPS = np.finfo(float).eps
A, M, B, CUBE, COUPLED = np.array([1.0, 1.7]), np.array([[0.9, -0.4], [0.3, 1.1]]), np.array([1.3, 0.6]), 0.2, 0.3
CENTRE = np.array([1.4, -1.2])
X0, W0 = np.array([0.4, -0.3]), np.array([[0.3, -0.2], [0.1, 0.25], [-0.15, 0.05]])
V0 = np.array([[0.2, 0.1], [-0.1, 0.3], [0.05, -0.2]])
BOUNDS = (np.full(2, -9.0), np.full(2, 9.0)), (np.array([-9.0, -0.31]), np.array([0.45, 9.0]))  # the second tight
_RNG = np.random.default_rng(5)
XI = {level: _RNG.uniform(-1, 1, rows) for level, rows in ROWS.items()}
ETA = {level: _RNG.normal(size=(rows, 2)) for level, rows in ROWS.items()}


def upper(x, y, xi, eta):
    steep = B @ (y - eta) ** 2 / 2 + CUBE * jnp.sum(y**4) / 4 + x[0] * y[1] * jnp.sin(2 * xi)
    return steep + jnp.sum((x - CENTRE) ** 2) / 2 + x[1] ** 4 / 4


def lower(x, y, xi, eta):
    r = y - (1 + xi / 2) * (M @ x)
    return A @ y**2 / 2 + jnp.sum(r**2) / 2 + CUBE * jnp.sum(r**4) / 4 - y @ eta + COUPLED * y[0] * y[1]


# -- the same by hand: means over rows, `batch` is positions in the pool and their shares


def phi(xi):
    return np.stack([np.ones_like(xi), xi, 2 * xi**2 - 1], axis=1)


def rows(level, W, batch):
    (_index, share), xi, eta = batch, XI[level][batch[0]], ETA[level][batch[0]]
    return phi(xi), phi(xi) @ W, xi, eta, share


def upper_rows(x, W, batch):
    """Features, shares, and row by row ``f``, ``d1 f``, ``d2 f``."""
    p, y, xi, eta, share = rows("upper", W, batch)
    wave = np.sin(2 * xi)
    value = (y - eta) ** 2 @ B / 2 + CUBE * np.sum(y**4, axis=1) / 4 + x[0] * y[:, 1] * wave
    value = value + np.sum((x - CENTRE) ** 2) / 2 + x[1] ** 4 / 4
    d1 = np.stack([y[:, 1] * wave + (x - CENTRE)[0], 0 * xi + (x - CENTRE)[1] + x[1] ** 3], axis=1)
    d2 = B * (y - eta) + CUBE * y**3 + x[0] * wave[:, None] * np.array([0.0, 1.0])
    return p, share, value, d1, d2


def lower_rows(x, W, batch):
    """Features, shares, and row by row ``d1 g, d2 g, d22 g, d12 g``."""
    p, y, xi, eta, share = rows("lower", W, batch)
    stretch = 1 + xi / 2
    r = y - stretch[:, None] * (M @ x)
    d1 = -stretch[:, None] * ((r + CUBE * r**3) @ M)
    d2 = A * y + r + CUBE * r**3 - eta + COUPLED * y[:, ::-1]
    bend = 1 + 3 * CUBE * r**2
    d22 = (A + bend)[:, :, None] * np.eye(2) + COUPLED * np.array([[0.0, 1.0], [1.0, 0.0]])
    d12 = -stretch[:, None, None] * M.T * bend[:, None, :]
    return p, share, d1, d2, d22, d12


def f1(x, W, batch):
    _, share, _, d1, _ = upper_rows(x, W, batch)
    return share @ d1


def f2(x, W, batch):
    p, share, _, _, d2 = upper_rows(x, W, batch)
    return (p * share[:, None]).T @ d2


def g1(x, W, batch):
    _, share, d1, _, _, _ = lower_rows(x, W, batch)
    return share @ d1


def g2(x, W, batch):
    p, share, _, d2, _, _ = lower_rows(x, W, batch)
    return (p * share[:, None]).T @ d2


def g22(x, W, batch):
    """As a matrix over coefficients, by function and then by component of ``y``."""
    p, share, _, _, d22, _ = lower_rows(x, W, batch)
    return np.einsum("n,nk,nab,nl->kalb", share, p, d22, p).reshape(6, 6)


def g12(x, W, batch):
    p, share, _, _, _, d12 = lower_rows(x, W, batch)
    return np.einsum("n,nja,nk->jka", share, d12, p).reshape(2, 6)


def hv(x, W, batch, v):
    return (g22(x, W, batch) @ v.ravel()).reshape(3, 2)


def cv(x, W, batch, v):
    return g12(x, W, batch) @ v.ravel()


POOL = {level: (np.arange(count), np.full(count, 1 / count)) for level, count in ROWS.items()}


# -- which rows: listed beforehand, by level and size, so that no program shuffles them

LISTED = 160


def _epochs(pool, size):
    """Every row once an epoch; the last batch of one may be filled up with rows of no share."""
    per_epoch, out = -(-pool // size), []
    for number in range(LISTED):
        order = np.random.default_rng([pool, number // per_epoch]).permutation(pool)
        part = order[number % per_epoch * size :][:size]
        share = np.where(np.arange(size) < len(part), size / len(part), 0.0)
        out.append((np.pad(part, (0, size - len(part))).astype(np.int32), share))
    return tuple(np.stack(column) for column in zip(*out, strict=True))


@cache
def listed(pool, size, shuffle):
    if shuffle:
        return _epochs(pool, size)
    return np.random.default_rng([pool, size]).integers(pool, size=(LISTED, size), dtype=np.int32), np.ones(
        (LISTED, size)
    )


def rows_of_batch(key, number, size, pool, shuffle, dtype):
    """In place of the library's: by number; with replacement, by number and key."""
    index, share = (jnp.asarray(table) for table in listed(pool, size, shuffle))
    place = jnp.asarray(number) if shuffle else (jnp.asarray(number) + jax.random.key_data(key)[0]) % LISTED
    share = share[place].astype(dtype)
    return RowIndex(index[place], share, jnp.sum(share > 0).astype(jnp.int32))


KEY = jax.random.key(11)


@cache
def chances():
    """For each step: of the draws with replacement, of a choice, of a number between 0 and 1, of large batches."""
    first = lambda key: jax.random.key_data(key)[0]

    @jax.jit
    def all_steps():
        own = jax.vmap(lambda k: derived(derived(KEY, 2), k))(jnp.arange(STEPS))
        large = lambda key: jax.vmap(first)(jax.random.split(derived(key, 1)))
        each = lambda key: (first(derived(key, 2)), hashed(key, 3), jax.random.uniform(key, ()), large(key))
        return jax.vmap(each)(own)

    return [np.asarray(column) for column in all_steps()]


def taken(level, size, place, shuffle=True):
    index, share = (table[int(place) % LISTED] for table in listed(ROWS[level], size, shuffle))
    return index, share / size


class Batches:
    """The batches of a run, in turn."""

    def __init__(self, size):
        self.size, self.place, self.step = size, {"upper": 0, "lower": 0}, 0

    def _next(self, level):
        self.place[level] += 1
        assert self.place[level] <= LISTED
        return taken(level, self.size, self.place[level] - 1)

    def upper(self):
        return self._next("upper")

    def lower(self):
        return self._next("lower")

    def free(self, j):
        return taken("lower", self.size, int(chances()[0][self.step]) + j, False)

    def choice(self, count):
        return int(below(chances()[1][self.step], count))

    def uniform(self):
        return float(chances()[2][self.step])

    def large(self, size):
        if size is None:
            return POOL["upper"], POOL["lower"]
        return tuple(taken(*one, False) for one in zip(ROWS, (size, size), chances()[3][self.step], strict=True))


# -- the published updates: each from a point and what it remembers to the next; `p` projects x


def neumann_sum(x, W, b, draw, s, terms):
    power = total = b
    for j in range(terms):
        power = power - s * hv(x, W, draw(j), power)
        total = total + power
    return s * total


def cut_product(x, W, b, draw, s, terms, chosen):
    for j in range(chosen):
        b = b - s * hv(x, W, draw(j), b)
    return terms * s * b


def by_series(x, W, up, low, solve):
    return f1(x, W, up) - cv(x, W, low, solve(x, W, f2(x, W, up)))


def stocbio(z, d, r, p):
    W = z.W
    for _ in range(z.T):
        W = W - r.inner * g2(z.x, W, d.lower())
    up, low = d.upper(), d.lower()
    h = by_series(z.x, W, up, low, lambda x, W, b: neumann_sum(x, W, b, d.free, r.neumann, z.K))
    return SimpleNamespace(x=p(z.x - r.outer * h), W=W)


def bsa(z, d, r, p):
    W = z.W
    for t in range(int(np.ceil(np.sqrt(d.step + 1)))):
        W = W - r.of("inner", t) * g2(z.x, W, d.lower())
    return _with_cut_series(z, W, d, r, p)


def ttsa(z, d, r, p):
    return _with_cut_series(z, z.W - r.inner * g2(z.x, z.W, d.lower()), d, r, p)


def _with_cut_series(z, W, d, r, p):
    up, low, chosen = d.upper(), d.lower(), d.choice(z.K)
    h = by_series(z.x, W, up, low, lambda x, W, b: cut_product(x, W, b, d.free, r.neumann, z.K, chosen))
    return SimpleNamespace(x=p(z.x - r.outer * h), W=W)


def _momentum(series, z, d, r, p):
    first, up, second, last = d.lower(), d.upper(), d.lower(), getattr(z, "last", None)
    slope = lambda x, W: g2(x, W, first)
    hyper = lambda x, W: by_series(x, W, up, second, series(d, r, z.K))
    if last is None:
        P, Q = slope(z.x, z.W), hyper(z.x, z.W)
    else:
        P = slope(z.x, z.W) + (1 - r.momentum) * (last.P - slope(last.x, last.W))
        Q = hyper(z.x, z.W) + (1 - r.momentum) * (last.Q - hyper(last.x, last.W))
    last = SimpleNamespace(x=z.x, W=z.W, P=P, Q=Q)
    return SimpleNamespace(x=p(z.x - r.outer * Q), W=z.W - r.inner * P, last=last)


def sustain(z, d, r, p):
    def series(d, r, K):
        chosen = d.choice(K)
        return lambda x, W, b: cut_product(x, W, b, d.free, r.neumann, K, chosen)

    return _momentum(series, z, d, r, p)


def mrbo(z, d, r, p):
    return _momentum(lambda d, r, K: lambda x, W, b: neumann_sum(x, W, b, d.free, r.neumann, K), z, d, r, p)


def vrbo(z, d, r, p):
    slope = lambda x, W, low: g2(x, W, low)
    hyper = lambda x, W, up, low, draw: by_series(
        x, W, up, low, lambda x, W, b: neumann_sum(x, W, b, draw, r.neumann, z.K)
    )
    if d.step % z.period == 0:
        up, low = d.large(z.large)
        u, v = slope(z.x, z.W, low), hyper(z.x, z.W, up, low, lambda _: low)
    else:
        u, v = z.u, z.v
    x = p(z.x - r.outer * v)
    before, W = (z.x, z.W), z.W
    for t in range(z.T + 1):
        first, up, second, draw = d.lower(), d.upper(), d.lower(), lambda j, t=t: d.free(t * z.K + j)
        u = u + slope(x, W, first) - slope(*before, first)
        v = v + hyper(x, W, up, second, draw) - hyper(*before, up, second, draw)
        before, W = (x, W), W - r.inner * u if t < z.T else W
    return SimpleNamespace(x=x, W=W, u=u, v=v)


def three(x, W, v, up, low):
    return g2(x, W, low), hv(x, W, low, v) - f2(x, W, up), f1(x, W, up) - cv(x, W, low, v)


def soba(z, d, r, p):
    dW, dv, dx = three(z.x, z.W, z.v, d.upper(), d.lower())
    return SimpleNamespace(x=p(z.x - r.outer * dx), W=z.W - r.inner * dW, v=z.v - r.linear * dv)


def saba(z, d, r, p):
    def terms(level, batch):
        if level == "upper":
            _, _, _, d1, d2 = upper_rows(z.x, z.W, batch)
            return {"f1": d1, "f2": d2}
        q, _, _, d2, d22, d12 = lower_rows(z.x, z.W, batch)
        along = q @ z.v
        return {"g2": d2, "hv": np.einsum("nab,nb->na", d22, along), "cv": np.einsum("nja,na->nj", d12, along)}

    table = getattr(z, "table", None)
    if table is None:
        table = {**terms("upper", POOL["upper"]), **terms("lower", POOL["lower"])}
    table, found = {name: rows.copy() for name, rows in table.items()}, {}
    for level, (index, share) in (("upper", d.upper()), ("lower", d.lower())):
        index, share = index[share > 0], share[share > 0]
        for name, new in terms(level, (index, share)).items():
            in_W, everywhere = name in ("f2", "g2", "hv"), phi(XI[level])
            mean = lambda rows, q, w, in_W=in_W: (q * w[:, None]).T @ rows if in_W else w @ rows
            whole = mean(table[name], everywhere, POOL[level][1])
            found[name] = mean(new - table[name][index], everywhere[index], share) + whole
            table[name][index] = new
    x = p(z.x - r.outer * (found["f1"] - found["cv"]))
    v = z.v - r.linear * (found["hv"] - found["f2"])
    return SimpleNamespace(x=x, W=z.W - r.inner * found["g2"], v=v, table=table)


def spaba(z, d, r, p):
    up, low, last = d.upper(), d.lower(), getattr(z, "last", None)
    if last is None or d.uniform() < z.probability:
        D = three(z.x, z.W, z.v, *d.large(z.large))
    else:
        new, old = three(z.x, z.W, z.v, up, low), three(last.x, last.W, last.v, up, low)
        D = tuple(before + a - b for before, a, b in zip(last.D, new, old, strict=True))
    last = SimpleNamespace(x=z.x, W=z.W, v=z.v, D=D)
    return SimpleNamespace(x=p(z.x - r.outer * D[2]), W=z.W - r.inner * D[0], v=z.v - r.linear * D[1], last=last)


def fdehbo(z, d, r, p):
    up, low, last = d.upper(), d.lower(), getattr(z, "last", None)

    def D(x, W, v):
        delta = z.difference * (1 + np.linalg.norm(W)) / np.linalg.norm(v)
        ahead, behind = W + delta * v, W - delta * v
        product = (g2(x, ahead, low) - g2(x, behind, low)) / (2 * delta)
        cross = (g1(x, ahead, low) - g1(x, behind, low)) / (2 * delta)
        return g2(x, W, low), product - f2(x, W, up), f1(x, W, up) - cross

    now = D(z.x, z.W, z.v)
    if last is not None:
        then = D(last.x, last.W, last.v)
        now = tuple(a + (1 - r.momentum) * (e - b) for a, e, b in zip(now, last.D, then, strict=True))
    v = z.v - r.linear * now[1]
    v = v * min(1, r.radius / np.linalg.norm(v))
    last = SimpleNamespace(x=z.x, W=z.W, v=z.v, D=now)
    return SimpleNamespace(x=p(z.x - r.outer * now[2]), W=z.W - r.inner * now[0], v=v, last=last)


def amigo(z, d, r, p):
    W, v = z.W, z.v
    for _ in range(z.T):
        W = W - r.inner * g2(z.x, W, d.lower())
    up = d.upper()
    for _ in range(z.M):
        v = v - r.linear * (hv(z.x, W, d.lower(), v) - f2(z.x, W, up))
    h = f1(z.x, W, up) - cv(z.x, W, d.lower(), v)
    return SimpleNamespace(x=p(z.x - r.outer * h), W=W, v=v)


def f2sa(z, d, r, p):
    """``W`` is the paper's z; its y descends on ``f / lambda + g``."""
    Y, Z = getattr(z, "Y", z.W), z.W
    for _ in range(z.T):
        low, up = d.lower(), d.upper()
        Y, Z = Y - r.inner * (g2(z.x, Y, low) + f2(z.x, Y, up) / r.penalty), Z - r.inner * g2(z.x, Z, low)
    up, low = d.upper(), d.lower()
    h = f1(z.x, Y, up) + r.penalty * (g1(z.x, Y, low) - g1(z.x, Z, low))
    return SimpleNamespace(x=p(z.x - r.outer * h), W=Z, Y=Y)


def floored(H, least):
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    return (vectors * np.maximum(values, least)) @ vectors.T


def stable(z, d, r, p):
    low, last = d.lower(), getattr(z, "last", None)
    H, J = g22(z.x, z.W, low), g12(z.x, z.W, low)
    if last is not None:
        H = H + (1 - r.momentum) * (last.H - g22(last.x, last.W, low))
        J = J + (1 - r.momentum) * (last.J - g12(last.x, last.W, low))
    H = floored(H, r.convex)
    up = d.upper()
    x = p(z.x - r.outer * (f1(z.x, z.W, up) - J @ np.linalg.solve(H, f2(z.x, z.W, up).ravel())))
    W = z.W - r.inner * g2(z.x, z.W, low) - np.linalg.solve(H, J.T @ (x - z.x)).reshape(3, 2)
    return SimpleNamespace(x=x, W=W, last=SimpleNamespace(x=z.x, W=z.W, H=H, J=J))


def rsvrb(z, d, r, p):
    first, second, up, last = d.lower(), d.lower(), d.upper(), getattr(z, "last", None)
    keep = 1 - r.momentum
    G = lambda x, W, H: f1(x, W, up) - g12(x, W, second) @ np.linalg.solve(H, f2(x, W, up).ravel())
    P, H = g2(z.x, z.W, first), g22(z.x, z.W, first)
    if last is not None:
        P = P + keep * (last.P - g2(last.x, last.W, first))
        H = H + keep * (last.H - g22(last.x, last.W, first))
    H = floored(H, r.convex)
    Q = G(z.x, z.W, H)
    if last is not None:
        Q = Q + keep * (last.Q - G(last.x, last.W, floored(last.H, r.convex)))
    last = SimpleNamespace(x=z.x, W=z.W, P=P, H=H, Q=Q)
    return SimpleNamespace(x=p(z.x - r.outer * Q), W=z.W - r.inner * P, last=last)


# -- step sizes: with settings as they are given, and as they are left out, from the scales

SCALES = {"smooth": 4.5, "convex": 3.0, "bend": 5.0, "gradient": 1.0, "pull": 1.2, "steep": 2.1, "epoch": 3.0}
L, MU, BEND, CONDITION = 4.5, 3.0, 5.0, 1.5
CALM, CALMED = 10 * CONDITION, lambda c, power: lambda k: c * (1 + k / (10 * CONDITION)) ** -power
OUTER = lambda loops=1: min(1 / 2, loops / CONDITION) / BEND
RECURSIVE = lambda loops=1: {
    "inner": CALMED(1 / L, 1 / 3),
    "outer": CALMED(OUTER(loops), 1 / 3),
    "momentum": lambda k: (1 + k / CONDITION) ** (-2 / 3),
}
LAMBDA = 10 * 2.1 / MU
SERIES = {"neumann": 1 / L, "K": 3}  # twice the condition number
MEAN_TERMS = min(1, CONDITION / 3) / CONDITION  # memories are up to an epoch old: three batches
EXACT = {"inner": 1 / L / 2, "linear": 1 / L / 2, "outer": min(1 / 2, MEAN_TERMS) / BEND / 4}
PUBLISHED = {
    "StocBiO": (stocbio, {"inner": 1 / L, "outer": OUTER(10)}, SERIES | {"T": 10}),
    "BSA": (bsa, {"inner": lambda t: 1 / (L + MU * t / 2), "outer": CALMED(OUTER(2) / 2, 1 / 2)}, SERIES),
    "TTSA": (ttsa, {"inner": CALMED(1 / L, 2 / 5), "outer": CALMED(OUTER(), 3 / 5)}, SERIES),
    "SUSTAIN": (sustain, RECURSIVE(), SERIES),
    "MRBO": (mrbo, RECURSIVE(4), SERIES),
    "VRBO": (vrbo, {"inner": 1 / L, "outer": OUTER(5)}, SERIES | {"T": 5, "period": 10, "large": None}),
    "SOBA": (
        soba,
        {"inner": CALMED(1 / L, 1 / 2), "linear": CALMED(1 / L, 1 / 2), "outer": CALMED(OUTER(0.5), 1 / 2)},
        {},
    ),
    "SABA": (saba, EXACT, {}),
    "SPABA": (spaba, EXACT, {"probability": 24 / (24 + 24), "large": None}),
    "FdeHBO": (
        fdehbo,
        RECURSIVE(0.5) | {"linear": CALMED(1 / L, 1 / 3), "radius": 10 * 2.1 / MU},
        {"difference": EPS ** (1 / 3)},
    ),
    "AmIGO": (amigo, {"inner": 1 / L, "linear": 1 / L, "outer": OUTER(10)}, {"T": 10, "M": 10}),
    "F2SA": (
        f2sa,
        {
            "inner": CALMED(0.5 / (L + 2.1 / LAMBDA), 4 / 7),
            "outer": CALMED(OUTER(10), 5 / 7),
            "penalty": CALMED(LAMBDA, -1 / 7),
        },
        {"T": 10},
    ),
    "STABLE": (stable, {"inner": 1 / L, "outer": OUTER(10), "momentum": 0.1, "convex": MU / 2}, {}),
    "RSVRB": (rsvrb, RECURSIVE() | {"convex": MU / 2}, {}),
}
# -- the two that solve the lower level in every step


def minimiser(x, W):
    """The lower level over all samples, by plain Newton steps."""
    for _ in range(30):
        W = W - np.linalg.solve(g22(x, W, POOL["lower"]), g2(x, W, POOL["lower"]).ravel()).reshape(3, 2)
    return W


def value_at(x, W):
    _, share, value, _, _ = upper_rows(x, W, POOL["upper"])
    return share @ value


def adjoint(x, W):
    return np.linalg.solve(g22(x, W, POOL["lower"]), f2(x, W, POOL["upper"]).ravel()).reshape(3, 2)


def hypergradient(x, W, v):
    return f1(x, W, POOL["upper"]) - cv(x, W, POOL["lower"], v)


def conjugate_gradients(H, b, v, accuracy):
    r = b - H @ v
    d = r
    while np.linalg.norm(r) > accuracy * np.linalg.norm(b):
        step = r @ r / (d @ H @ d)
        v, before, r = v + step * d, r, r - step * H @ d
        d = r + r @ r / (before @ before) * d
    return v
