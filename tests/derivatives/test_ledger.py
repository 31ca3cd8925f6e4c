"""The ledger against the true counts."""

import collections

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import cobilevel as cb
from cobilevel.answer import Job
from cobilevel.derivatives import Ledger, rows
from cobilevel.reduction import Batch
from problems import curved_problem


def counting(problem):
    """The problem with callbacks in both objectives that count how many samples were really looked at."""
    seen = collections.Counter()

    def count(name, function):
        def wrapped(x, y, xi, eta):
            jax.debug.callback(lambda _: seen.update([name]), xi)
            return function(x, y, xi, eta)

        return wrapped

    functions = {"upper": count("upper", problem.upper), "lower": count("lower", problem.lower)}
    return eqx.tree_at(lambda p: (p.upper, p.lower), problem, (functions["upper"], functions["lower"])), seen


@pytest.mark.parametrize(
    "solver",
    [cb.Newton(), cb.StocBiO(0.05, 0.05, inner_steps=3, terms=4, batch=7, shuffle=False)],
    ids=["newton", "stocbio"],
)
def test_ledger_equals_what_was_really_evaluated(solver, monkeypatch):
    monkeypatch.setattr(rows, "BLOCK", 20)  # a block that is not filled up
    problem, samples = curved_problem(20)
    problem, seen = counting(problem)
    reduced = cb.reduce(problem, cb.Chebyshev(3), samples)
    seen.clear()
    found = Job(None, solver, jax.random.key(0), 6).on(reduced)
    jax.effects_barrier()
    spent = found.stats["oracles"]
    upper = sum(count["samples"] for kind, count in spent.items() if kind.startswith("upper"))
    lower = {kind: count["samples"] for kind, count in spent.items() if not kind.startswith("upper")}
    lower_evaluations = sum(lower.values())  # value, gradient and Hessian of a sample share one evaluation
    if isinstance(solver, cb.Newton):  # the products along all coordinates share one evaluation of each sample
        products, dx = lower["hessian_vector"], reduced.problem.sizes[0]
        assert products == found.stats["steps"] * dx * 20
        shared = products - products // dx
        upper, lower_evaluations = upper - shared, lower_evaluations - shared
    assert (seen["upper"], seen["lower"]) == (upper, lower_evaluations)
    if isinstance(solver, cb.StocBiO):
        calls = {kind: count["calls"] for kind, count in spent.items()}
        assert calls == {"lower_gradient": 18, "hessian_vector": 24, "cross_product": 6, "upper_gradient": 6}
        assert lower["lower_gradient"] == 18 * 7


def test_counts_do_not_overflow():
    class Big(Batch):
        def __len__(self):
            return 2**31

    big = Big(jnp.zeros((1, 1)), jnp.zeros(1), None, jnp.ones(1))
    ledger = Ledger.empty()
    for _ in range(5):
        ledger = ledger.add("hessian", big)
    assert ledger.totals() == {"hessian": {"calls": 5, "samples": 5 * 2**31}}
    many = ledger.add("hessian_vector", big, 70_001).totals()["hessian_vector"]
    assert many == {"calls": 70_001, "samples": 70_001 * 2**31}
