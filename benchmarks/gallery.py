"""Every entry of the gallery, each in a process of its own: seconds, basis, objective, certificate, in one table.

``cb.solve(problem, samples)`` with nothing set, but for what an entry states; those are marked ``*``. The objective is
that of the problem as stated, with exact lower level, over the best one known: by closed form, quadrature or a search
of the entry's own (``truth``). For ``cleaning`` it is the loss on the validation images with exact classifiers at 12
temperatures, over that after ten times as many steps. The certificate, on samples that were not used to solve, covers
where its 95% interval for the objective holds the true one of the decision found.

Run: python benchmarks/gallery.py [--only dro,toll] [--limit 280] [--markdown] [--json FILE]
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import harness

WITHIN = 0.01  # of the best objective known


def judge_of(name, instance, again):
    """The objective that is to be small, the best known, and the objective that the certificate is to cover."""
    import numpy as np

    import cobilevel as cb

    truth = instance.truth
    if name == "two_edge_traffic":
        many = cb.gallery.two_edge_traffic(0, test=101_000).test.rows(slice(1000, None))
        loss = lambda x: float(truth.loss(x, many))
        return loss, loss(truth.x), loss
    if name == "federated":  # its objective is of the rows at hand, the certificate's of fresh ones
        fresh = lambda x: float(truth.true_loss(truth.policy(x)).mean())
        return truth.objective, truth.objective(truth.x), fresh
    if name == "cleaning":
        upper = instance.train.upper
        on = lambda data: lambda x: truth.objective(np.asarray(x, np.float32), data, upper.law.quadrature(12))
        longer = again(10)
        return on(upper.eta), on(upper.eta)(longer.x), on(instance.test.eta)
    return truth.objective, min(map(truth.objective, nearby(name, truth))), truth.objective


def nearby(name, truth):
    """Decisions of which one is the best known: the truth's own, and for a network what capacities that are stated
    change in it, by SciPy."""
    if name != "network":
        return [truth.x]
    from scipy.optimize import minimize

    ends = [(0.5, 2.0)] * len(truth.x)
    options = {"maxfun": 40 * len(truth.x)}
    return [truth.x, minimize(truth.objective, truth.x, method="L-BFGS-B", bounds=ends, options=options).x]


def one(name):
    """Figures of one entry, in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import cobilevel as cb
    from cobilevel.gallery import ENTRIES

    warnings.simplefilter("ignore")
    entry = ENTRIES[name]
    instance, stated = entry.make(0, **entry.sizes()), entry.settings()
    call = lambda: cb.solve(instance.problem, instance.train, **stated)
    solution, first = harness.timed(call)
    _, second = harness.timed(call)
    again = lambda times: cb.solve(instance.problem, instance.train, **stated | {"steps": times * stated["steps"]})
    basis = solution.basis.basis
    shown = {"name": name, "first": first, "second": second, "basis": str(getattr(basis, "basis", basis))}
    shown |= {"stated": ", ".join(stated), "result": solution.result.name, "steps": int(solution.stats["steps"])}
    objective, best, fresh = judge_of(name, instance, again)
    low, high, seconds = float("nan"), float("nan"), float("nan")
    if name != "cleaning":  # with 3200 coefficients it takes many minutes
        certificate, seconds = harness.timed(cb.certify, instance.problem, solution, instance.fresh)
        low, high = map(float, certificate.objective.interval)
    reached, covered = float(objective(solution.x)), float(fresh(solution.x))
    return shown | {
        "best": float(best), "reached": reached, "low": low, "high": high, "covered": covered, "certify": seconds,
    }  # fmt: skip


def misses(row):
    """Why an entry does not count, in words; empty where it does."""
    if "low" not in row:
        return ["no answer within the limit"] if row.get("timeout") else ["failed"]
    words = [] if excess(row) <= WITHIN else [f"{100 * excess(row):.1f}% above the best"]
    if row["low"] != row["low"]:
        words.append("no certificate")
    elif not row["low"] <= row["covered"] <= row["high"]:
        words.append("not covered")
    return words + ([] if row["result"] == "CONVERGED" else [row["result"].lower()])


def excess(row):
    return (row["reached"] - row["best"]) / abs(row["best"])


def cells(row):
    name = row["name"] + ("*" if row.get("stated") else "")
    if "low" not in row:
        return [name, "", "", "", "", "", "", ", ".join(misses(row))]
    interval = f"{row['covered']:.5g} in [{row['low']:.5g}, {row['high']:.5g}]"
    ratio = f"{row['reached'] / row['best']:.5f}"
    seconds = [f"{row[part]:.1f}" for part in ("first", "second", "certify")]
    return [name, *seconds, row["basis"], ratio, interval, ", ".join(misses(row)) or "holds"]


def main():
    given = harness.arguments(
        __doc__,
        ("--only", "", "names, with commas"),
        ("--limit", 280.0, "seconds for an entry"),
        ("--markdown", False),
        ("--json", Path),
        ("--one", str, harness.HIDDEN),
    )
    if given.one:
        return print(json.dumps(one(given.one)))
    from cobilevel.gallery import ENTRIES

    print(harness.circumstances(), flush=True)
    head = ["entry", "first, s", "second, s", "certify, s", "basis", "of the best", "objective in interval", "verdict"]
    widths, rows = (17, 9, 10, 11, 34, 12, 36, 20), []
    line = lambda parts: print(*(f"{part:<{width}}" for part, width in zip(parts, widths, strict=True)), flush=True)
    line(head)
    for name in given.only.split(",") if given.only else ENTRIES:
        command = [sys.executable, __file__, "--one", name]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=given.limit, check=False)
            row = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"name": name}
        except subprocess.TimeoutExpired:
            row = {"name": name, "timeout": True}
        rows.append(row)
        line(cells(row))
    missed = [f"{row['name']} ({', '.join(misses(row))})" for row in rows if misses(row)]
    print(f"{len(rows) - len(missed)} of {len(rows)} hold. Misses: {'; '.join(missed) or 'none'}.", flush=True)
    if given.markdown:
        for parts in (head, ["---"] * len(head), *map(cells, rows)):
            print(f"| {' | '.join(parts)} |")
    if given.json is not None:
        given.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
