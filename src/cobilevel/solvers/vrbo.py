"""``VRBO``: variance-reduced bilevel optimizer, by recursive differences (Yang, Ji, Liang 2021)."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp

from .. import trees
from ..iteration import storm
from .parts import SeriesSolver, both_gradients


class VRBO(SeriesSolver):
    r"""Every $q$ outer steps both estimates are taken on a large batch; in between they are corrected by differences.

    $$p \leftarrow p + \partial_2 g_\Phi(z; S) - \partial_2 g_\Phi(z'; S), \qquad q \leftarrow q + h(z; B) - h(z'; B),$$
    $z'$ the point before $z$, with stocBiO's Neumann sum in the hypergradient $h$. An outer step moves
    $x_{k+1} = P[x_k - \alpha q]$, and then $T$ inner ones $W \leftarrow W - \beta p$, with a correction before each of
    them and one at the end.

    **Arguments**, besides those of every stochastic solver: `period` $q$; `inner_steps` $T$; `large`, the rows of the
    large batch (all, by default; of a stream, 16 batches); `neumann` and `terms`, scale and length of the sum, by
    default the measured $1/L$ and twice the measured condition number, at most 1000.

    Reference: J. Yang, K. Ji, Y. Liang, Provably faster algorithms for bilevel optimization, NeurIPS 2021.
    """

    default_steps = 1000
    counts = (("terms", 1), ("inner_steps", 1), ("period", 1), ("large", 1))

    inner_steps: int = eqx.field(static=True, default=5)
    period: int = eqx.field(static=True, default=10)
    large: int | None = eqx.field(static=True, default=None)

    def defaults(self, scales):
        return {"inner": scales.inner, "outer": scales.outer(self.inner_steps)}

    def begin(self, reduced, start, ledger):
        return (trees.zeros(start.W), trees.zeros(reduced.x0)), ledger

    def update(self, reduced, s, draw, rate):
        linear = self.series(s)

        def anew(ledger):
            upper, lower = draw.large(self.large)
            return both_gradients(reduced, s.x, s.W, (lower, upper, lower), (linear, lambda _: lower), ledger)

        kept = lambda ledger: (s.outer.value, s.memory, ledger)
        value, estimates, ledger = jax.lax.cond(s.step % self.period == 0, anew, kept, s.ledger)
        after = self.move(reduced, s, value, estimates[1], rate.outer)
        rounds = self.inner_steps + 1
        lowers, uppers, free = draw.lowers(2 * rounds), draw.uppers(rounds), draw.independent()

        def correct(t, carry):
            before, W, estimates, ledger = carry
            batches = (lowers(2 * t), uppers(t), lowers(2 * t + 1))
            series = (linear, lambda j: free(t * linear.terms + j))
            _, here, ledger = both_gradients(reduced, after.x, W, batches, series, ledger)
            _, there, ledger = both_gradients(reduced, *before, batches, series, ledger)
            estimates = storm(estimates, here, there, 0.0)
            onward = jnp.where(t < self.inner_steps, rate.inner, 0)
            return (after.x, W), trees.step(W, onward, estimates[0]), estimates, ledger

        _, W, memory, ledger = jax.lax.fori_loop(0, rounds, correct, ((s.x, s.W), s.W, estimates, ledger))
        return replace(after, W=W, memory=memory, ledger=ledger)
