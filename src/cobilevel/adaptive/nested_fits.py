"""Fits of the lower level at one ``x`` with more and more functions, each going on from the one before."""

from collections.abc import Iterator
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from ..basis import Axes, combine
from ..derivatives import Direct, Ledger, hypergradient
from ..problem import Samples, Study
from ..programs import program, put
from ..reduction import Batch, Bilevel, Table
from .residuals import Residuals, masked, masked_minimum, residuals

TIERS = ((1, 2, 3, 4, 5, 6, 8), (10, 12, 16, 20, 24), (32, 40, 48, 64))  # functions on an interval, tried in turn
_WIDTHS = (24, 64, 128, 256, 1000)  # tables are filled up to one of these, so that few programs are compiled
_WIDE, _NARROW = 64, 128  # the least width in several dimensions, where sets soon are large; coefficients it may take
_BULK = 0.7  # share of what the next functions bring that is taken on at once, in several dimensions
_ROUNDS_AHEAD = 40  # the most rounds of looking at the next functions
MOST_COEFFICIENTS = 1000  # the largest N d_y tried
SMALLEST_PIVOT = 1e-7  # of the largest: below, the contexts do not distinguish a function from those before it


class Split(eqx.Module):
    """The samples looked at: those fitted to, those held out, and the upper level's."""

    train: Samples
    held: Samples
    upper: Samples

    @staticmethod
    def of(study: Study, key: Array, share: float) -> "Split":
        """A look at both levels, with that share of the lower level's samples to fit to and at least one held out."""
        rows = study.lower.look(key).samples
        cut = max(1, int(len(rows) * share))
        held = rows.rows(slice(cut, None)) if cut < len(rows) else rows.rows(slice(0, 1))
        return Split(rows.rows(slice(0, cut)), held, rows if study.shared else study.upper.look(key).samples)


@dataclass(frozen=True)
class Candidate:
    """One set of functions, fitted at ``x``: the lower objective on held-out samples, and the reduced gradient."""

    members: Int[np.ndarray, "N d"]
    judged: Float[np.ndarray, " m"]
    gradient: Float[np.ndarray, " dx"]
    value: float


class MaskedFit(eqx.Module):
    """The lower level fitted with some of a table's functions, and what follows from it."""

    z: Float[Array, " n"]
    judged: Float[Array, " m"]
    gradient: Float[Array, " dx"]
    value: Float[Array, ""]
    sound: Bool[Array, ""]
    ledger: Ledger


@program
def _masked_fit(
    bare: Bilevel, x: PyTree, z: Float[Array, " n"], mask: Float[Array, " N"], held: Batch, ledger: Ledger
) -> MaskedFit:
    """Minimises the lower objective over the functions in the mask; its values on held-out samples; the gradient."""
    train, upper = (masked(pool, mask) for pool in (bare.lower_pool, bare.upper_pool))
    found, W = masked_minimum(bare, x, z, mask, train)
    ledger = ledger.add("lower_gradient", train).add("hessian", train, found.evaluations).add("lower_value", held)
    y = combine(masked(held, mask).features, W)
    values = jax.vmap(bare.problem.lower, in_axes=(None, 0, 0, 0))(x, y, held.xi, held.eta)
    value, gradient, _, ledger = hypergradient(bare, x, W, upper, train, Direct(found.hessian), lambda _: train, ledger)
    flat = ravel_pytree(gradient)[0]
    sound = found.converged & jnp.all(jnp.isfinite(values)) & jnp.all(jnp.isfinite(flat))
    return MaskedFit(found.point, values, flat, value, sound, ledger)


class NestedFits:
    """Fits with the leading functions of a list, at one ``x``; features orthonormal on the samples fitted to.

    A QR factorisation of the features makes the leading new functions span the leading old ones, so that a fit with
    fewer functions is a mask, and one with more goes on from it. Tables are filled up with zeros to a few widths.
    """

    def __init__(self, study: Study, split: Split, ledger: Ledger):
        self.ledger, self.problem, self.dtype = ledger, study.problem, study.dtype
        self.parts = (split.train, split.held, split.upper)
        self.weights = [part.mean_one_weights().astype(self.dtype) for part in self.parts]
        self.size = study.problem.sizes[1]
        domain = self.problem.domain
        self.axes = Axes.of(domain)
        self.places = [self.axes.places(domain, domain.snap(part.xi, self.dtype)) for part in self.parts]
        self.z = np.zeros(0)
        self.usable = 0

    def lay(self, members: np.ndarray) -> None:
        """Takes a longer list of functions, which begins with the one before."""
        fewest = _WIDE if members.shape[1] > 1 and self.size * _WIDE <= _NARROW else 0
        width = next(w for w in _WIDTHS if w >= max(len(members), fewest))
        train = self.axes.table(self.places[0], members)
        root = np.sqrt(self.parts[0].shares())[:, None]
        triangle = np.asarray(np.linalg.qr(root * train, mode="r"))
        pivots = np.abs(np.diag(triangle))
        self.usable = int(np.argmin(np.append(pivots > SMALLEST_PIVOT * pivots[0], False)))
        forth = np.zeros((len(members), width))
        forth[: self.usable, : self.usable] = np.linalg.inv(triangle[: self.usable, : self.usable])
        self.table = train @ forth
        lower = self._batch(0, self.table)
        self.held = self._batch(1, self.axes.table(self.places[1], members) @ forth)
        shared = self.parts[2] is self.parts[0]
        upper = lower if shared else self._batch(2, self.axes.table(self.places[2], members) @ forth)
        flat = np.zeros((width, self.size))
        flat[0] = triangle[0, 0] * np.asarray(ravel_pytree(self.problem.y0)[0])  # y0, the constant policy
        old = self.z.reshape(-1, self.size)[: self.usable]
        flat[: len(old)] = old if len(old) else flat[: len(old)]
        self.z = flat.reshape(-1)
        W0 = jax.tree.map(lambda y: put(np.zeros((width, *y.shape), self.dtype)), self.problem.y0)
        self.bare = Bilevel(self.problem, Table(upper), Table(lower), W0)

    def _batch(self, part: int, features: np.ndarray) -> Batch:
        rows, weight = self.parts[part], self.weights[part]
        return Batch(put(features.astype(self.dtype)), rows.xi, rows.eta, weight)

    def _from(self, x: PyTree, count: int) -> tuple[PyTree, Array, Array]:
        """``x``, the coefficients to go on from with the first `count` functions, and the mask of these."""
        mask = (np.arange(self.held.features.shape[1]) < count).astype(self.dtype)
        z = self.z.astype(self.dtype) * np.repeat(mask, self.size)
        return put((jax.tree.map(lambda a: np.asarray(a, self.dtype), x), z, mask))

    def fit(self, x: PyTree, count: int) -> MaskedFit | None:
        """With the first `count` functions; ``None`` where that fails."""
        found = _masked_fit(self.bare, *self._from(x, count), self.held, self.ledger)
        self.ledger = found.ledger
        if not bool(found.sound):
            return None
        self.z = np.asarray(found.z, float)
        return found

    def residuals(self, x: PyTree, joint: bool) -> Residuals | None:
        """What all functions of the list leave at ``x``; ``None`` where they cannot be fitted."""
        found = residuals(self.bare, *self._from(x, self.usable), joint, self.ledger)
        self.ledger = found.ledger
        if not bool(found.sound):
            return None
        self.z = np.asarray(found.z, float)
        return found

    def candidate(self, x: PyTree, members: np.ndarray) -> Candidate | None:
        """The fit with these functions, judged; ``None`` where that fails."""
        found = None if len(members) > self.usable else self.fit(x, len(members))
        if found is None:
            return None
        judged = np.asarray(found.judged * self.held.weight, float)
        return Candidate(members, judged, np.asarray(found.gradient, float), float(found.value))


def by_degree(fits: NestedFits, x: PyTree, members: np.ndarray, most: int) -> Iterator[Candidate | None]:
    """Of one coordinate: functions of growing degree, from those given on."""
    for tier in TIERS:
        tier = [n for n in tier if len(members) <= n <= most]
        if tier:
            fits.lay(np.arange(tier[-1])[:, None])
        for n in tier:
            yield fits.candidate(x, np.arange(n)[:, None])


def by_margin(fits: NestedFits, x: PyTree, members: np.ndarray, most: int) -> Iterator[Candidate | None]:
    """In several dimensions: the next functions are tried all together, and those that bring the most are kept."""
    for _ in range(_ROUNDS_AHEAD):
        ahead = fits.axes.neighbours(members)
        further = fits.axes.neighbours(np.concatenate([members, ahead]))
        table = np.concatenate([members, ahead, further])[: max(most, len(members))]
        fits.lay(table)
        yield fits.candidate(x, members)
        kept = fits.z.copy()
        if len(table) == len(members) or fits.usable <= len(members) or fits.fit(x, fits.usable) is None:
            return
        brought = np.linalg.norm(fits.z.reshape(-1, fits.size), axis=1)[len(members) : fits.usable]
        order = np.argsort(-brought)
        share = np.cumsum(brought[order] ** 2) / max(np.sum(brought**2), np.finfo(float).tiny)
        wanted = {tuple(table[len(members) + k]) for k in order[: int(np.argmax(share >= _BULK)) + 1]}
        members, fits.z = fits.axes.closed(members, wanted), kept
        if len(members) > most:
            return
