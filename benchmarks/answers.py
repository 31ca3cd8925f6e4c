"""Did a change of the solver change answers? Records those to random problems, and compares two records.

    python benchmarks/answers.py --out before.json [--seeds 0 200]
    python benchmarks/answers.py --compare before.json after.json

A problem is drawn from its seed alone: up to eight coordinates of ``x`` and of ``y``, one to three of the context, 300
to 1500 samples. The lower level is strongly convex and mostly not quadratic; the upper level has a kink in a few. A
third has constraints on ``y``, a third weights, a third bounds on ``x``, two thirds noise in the lower level. A few
have data for each level, contexts crossed with data, finitely many contexts, one function for each cell, pytrees, or
single precision. Half are solved with nothing given, half in a given basis; a handful to a tolerance.

Of each are kept ``x``, the policy at 20 contexts, how the run ended, the basis, the objective, standard errors, and
what ``certify`` finds on fresh samples. The record is written after every problem, and a second call goes on where the
first one stopped. Problems are solved in a process of their own; one that takes longer than the limit is recorded as
such.
"""

import json
import math
import multiprocessing
import os
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

import harness

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp
import numpy as np

import cobilevel as cb

LIMIT = 120.0  # seconds for one problem
SLICE = 1.0  # seconds of a single wait
TOGETHER = 20  # problems solved by one process
CLEARED = 4  # problems, after which compiled programs are dropped
UNKNOWNS = 200  # coefficients of the policy in a given basis, at most
SHOWN = 20  # contexts at which the policy is kept
TINY = 1e-8  # of the largest entry: differences of smaller ones are measured by it
SQUARED = 1e-14  # the same for what is a square
WORST = 10  # problems listed
SPECIALS = {  # by the remainder of the seed by 20
    2: "levels",
    5: "product",
    7: "finite",
    9: "cells",
    11: "tree of x",
    13: "tree of y",
    15: "single",
    17: "tolerance",
    18: "kink",
}
RULES = ("bounds", "simplex", "equalities", "inequalities")


@dataclass(frozen=True)
class Case:
    """A problem, what it is solved from and how, and fresh samples of the same law."""

    problem: Any
    samples: Any
    fresh: Any
    contexts: Any
    what: str
    basis: Any = None
    settings: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What is decided about a problem before its numbers are drawn."""

    special: str
    rule: str
    given: bool
    dx: int
    dy: int
    dimension: int
    rows: int
    noisy: bool
    weighted: bool
    bounded: bool

    @property
    def what(self) -> str:
        said = [f"dx {self.dx}", f"dy {self.dy}", f"contexts {self.dimension}", f"rows {self.rows}"]
        words = {"noise": self.noisy, "weights": self.weighted, "x_bounds": self.bounded, "basis": self.given}
        return ", ".join([*said, *filter(None, (self.special, self.rule)), *(word for word in words if words[word])])


def planned(rng: np.random.Generator, seed: int) -> Plan:
    """Sizes and kinds; those that take many functions are kept small where nothing is given."""
    special = SPECIALS.get(seed % 20, "")
    rule = RULES[seed // 3 % 4] if seed % 3 == 1 else ""
    given = (special == "cells" or (seed + seed // 20) % 2 == 1) and special != "tolerance"
    noisy, weighted, bounded = rng.random() < 2 / 3, rng.random() < 1 / 3, rng.random() < 1 / 3
    dx, dy, dimension = (int(rng.integers(1, most + 1)) for most in (8, 8, 3))
    rows = int(rng.integers(300, 1501))
    if special in ("cells", "finite"):
        dimension = 1
    if special == "product":
        weighted = False
    if special == "cells":
        dx, dy = min(dx, 4), min(dy, 2)
    if special.startswith("tree"):
        dx, dy = max(dx, 2), max(dy, 2)
    if not given and (special == "product" or not noisy):  # as many functions are taken as the policy asks for
        dimension, dy = (1, min(dy, 3)) if rule else (min(dimension, 2), min(dy, 4))
    if rule in ("simplex", "equalities"):
        dy = max(dy, 2)
    return Plan(special, rule, given, dx, dy, dimension, rows, noisy, weighted, bounded)


def log_cosh(z):
    return jnp.logaddexp(z, -z) - math.log(2)


class Law:
    """The numbers of a problem: its functions, and draws of context and noise."""

    def __init__(self, rng: np.random.Generator, plan: Plan):
        self.plan = plan
        dx, dy, d = plan.dx, plan.dy, plan.dimension
        normal = lambda *shape: rng.normal(size=shape)
        turn = np.linalg.qr(normal(dy, dy))[0]
        self.bend = turn * rng.uniform(0.5, 2.0, dy) @ turn.T  # of the lower level
        self.move, self.tilt = normal(dy, dx) / np.sqrt(dx), 0.3 * normal(dy, dx) / np.sqrt(dx)
        self.waves, self.shift = normal(dy, d) * 1.2, rng.uniform(-np.pi, np.pi, dy)
        self.centre, self.level = normal(dy), 0.3 * normal(dy)
        self.bulge = rng.choice([0.0, 0.1, 0.5])  # of what is not quadratic
        self.aim, self.slope = normal(dy), 0.7 * normal(dy, d)
        turn = np.linalg.qr(normal(dx, dx))[0]
        self.price = turn * rng.uniform(0.1, 1.0, dx) @ turn.T  # of x
        self.wish, self.mixed = 0.7 * normal(dx), (normal(dx), normal(dy))
        self.noise = rng.uniform(0.1, 0.6) if plan.noisy else 0.0
        self.varying = plan.noisy and rng.random() < 0.3  # noise in the curvature too
        self.shared = rng.uniform(-0.5, 0.8)  # of the noise of the lower level that the upper one sees
        self.kink = rng.uniform(0.1, 0.5) if plan.special == "kink" else 0.0
        self.kink_in_x = rng.random() < 0.5
        self.width, self.radius = rng.uniform(0.4, 0.9), rng.uniform(0.8, 1.5) * np.sqrt(dy)
        self.rows_of_A, self.right = normal(1 + (dy > 4), dy), 0.5 * normal(1 + (dy > 4))
        self.cut, self.edge = normal(dy) / np.sqrt(dy), rng.uniform(0.1, 0.8)
        self.count = int(rng.integers(4, 13))  # of finitely many contexts
        self.lo = np.where(rng.random(d) < 0.5, -1.0, rng.uniform(-3, 3, d))
        self.hi = self.lo + np.where(self.lo == -1, 2.0, rng.uniform(0.5, 4, d))

    def unit(self, xi):
        """A context on the cube from -1 to 1."""
        return jnp.atleast_1d((2 * xi - self.lo - self.hi) / (self.hi - self.lo))

    def x_of(self, x):
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(x)])

    y_of = x_of

    def lower(self, x, y, xi, eta):
        x, y, u = self.x_of(x), self.y_of(y), self.unit(xi)
        goal = self.level + self.move @ x + u[0] * (self.tilt @ x) + 0.8 * jnp.sin(self.waves @ u + self.shift)
        if self.plan.rule == "simplex":
            goal = 1 / self.plan.dy + 0.5 * goal
        stiff = 1.0
        if self.plan.noisy:
            goal = goal + self.noise * (1 + 0.4 * u[0]) * eta["t"]
            stiff = 1 + 0.5 * eta["s"] if self.varying else 1.0
        off = y - goal
        return stiff * off @ self.bend @ off / 2 + self.bulge * jnp.sum(log_cosh(y - self.centre))

    def upper(self, x, y, xi, eta):
        x, y, u = self.x_of(x), self.y_of(y), self.unit(xi)
        off, own = y - self.aim - self.slope @ u - eta["o"], x - self.wish
        value = jnp.mean(off**2) / 2 + own @ self.price @ own / 2
        value = value + 0.3 * log_cosh(self.mixed[0] @ x + self.mixed[1] @ y)
        if self.kink:
            value = value + self.kink * (jnp.abs(x[0]) if self.kink_in_x else jnp.maximum(y[0] - x[0], 0))
        return value

    def domain(self, labels: bool):
        if self.plan.special == "finite":
            return cb.Finite([f"v{k}" for k in range(self.count)] if labels else self.values())
        return cb.Interval(self.lo[0], self.hi[0]) if self.plan.dimension == 1 else cb.Box(self.lo, self.hi)

    def values(self):
        return np.linspace(self.lo[0], self.hi[0], self.count)

    def contexts(self, rng, rows, labels=False):
        if self.plan.special == "finite":
            places = rng.integers(0, self.count, rows)
            return np.array([f"v{k}" for k in places]) if labels else self.values()[places]
        u = rng.beta(*((1.0, 1.0) if rows % 2 else (1.5, 1.2)), (rows, self.plan.dimension))
        xi = self.lo + (self.hi - self.lo) * u
        return xi[:, 0] if self.plan.dimension == 1 else xi

    def eta(self, rng, rows):
        t, own = rng.normal(size=(rows, self.plan.dy)), rng.normal(size=(rows, self.plan.dy))
        return {"t": t, "o": 0.5 * (self.shared * t + own), "s": rng.uniform(-1, 1, rows)}

    def samples(self, rng, labels=False):
        rows = self.plan.rows
        if self.plan.special == "product":
            few = 12 + rows % 9
            spread = cb.Uniform(self.domain(False)) if rows % 2 and self.plan.dimension == 1 else None
            return cb.Product(self.contexts(rng, rows // few) if spread is None else spread, self.eta(rng, few))
        weights = lambda n: rng.uniform(0.2, 2.0, n) if self.plan.weighted else None
        drawn = lambda n: cb.Samples(self.contexts(rng, n, labels), self.eta(rng, n), weights(n))
        return cb.Levels(upper=drawn(rows // 2), lower=drawn(rows)) if self.plan.special == "levels" else drawn(rows)

    def constraints(self) -> list | None:
        rule, dy = self.plan.rule, self.plan.dy
        if rule == "bounds":
            top = self.width + 0.1 * np.arange(dy)
            return [cb.Bounds(-self.width, self.tree(top, self.plan.special == "tree of y"))]
        if rule == "simplex":
            return [cb.Simplex()]
        if rule == "equalities":
            right = lambda x, xi: self.right * (1 + 0.5 * self.unit(xi)[0]) + 0.1 * self.x_of(x)[0]
            return [cb.Equalities(self.rows_of_A, right if dy % 2 else self.right)]
        if rule == "inequalities":
            ball = lambda x, y, xi: jnp.sum(self.y_of(y) ** 2) - self.radius**2
            half = lambda x, y, xi: self.cut @ self.y_of(y) - self.edge - 0.2 * self.unit(xi)[0]
            return [cb.Inequalities(ball if dy % 2 else half)]
        return None

    @staticmethod
    def tree(flat, wanted: bool):
        return {"a": flat[:1].reshape(()), "b": {"c": flat[1:]}} if wanted else flat

    def problem(self, labels: bool):
        plan = self.plan
        y0 = np.full(plan.dy, 1 / plan.dy if plan.rule == "simplex" else 0.0)
        return cb.Problem(
            self.upper,
            self.lower,
            x0=self.tree(np.zeros(plan.dx), plan.special == "tree of x"),
            y0=self.tree(y0, plan.special == "tree of y"),
            domain=self.domain(labels),
            x_bounds=(-0.4, 0.5) if plan.bounded else None,
            constraints=self.constraints(),
        )


def drawn_basis(rng: np.random.Generator, plan: Plan):
    """A basis with a moderate number of coefficients."""
    if plan.special == "finite":
        return cb.Categorical()
    if plan.special == "cells":
        return cb.Partition(100)
    most = max(1, min(UNKNOWNS // plan.dy, plan.rows // 10))
    kind, d = int(rng.integers(0, 6)), plan.dimension
    total = [n for n in range(2, 21) if math.comb(n - 1 + d, d) <= most]
    n = int(rng.integers(min(3, total[-1]), total[-1] + 1))
    index = {} if d == 1 else {"index": cb.TotalDegree()}
    splines = cb.BSpline(max(4, n)) if d == 1 else cb.BSpline(4)
    if kind in (1, 5) and d > 1 and 4**d > most:  # products of splines are too many
        kind = 0
    return (
        cb.Chebyshev(n, **index),
        splines,
        cb.Legendre(n, **index),
        cb.Orthonormal(cb.Chebyshev(n, **index)),
        cb.Orthonormal(cb.Legendre(n, **index)),
        cb.Orthonormal(splines),
    )[kind]


def drawn_case(seed: int) -> Case:
    """The problem of a seed."""
    rng = np.random.default_rng(seed)
    plan = planned(rng, seed)
    law, labels = Law(rng, plan), plan.special == "finite" and seed // 20 % 4 > 1
    if labels:
        law.lo, law.hi = np.zeros(1), np.array([law.count - 1.0])  # a context is then its place among the strings
    settings = {"single": {"precision": "single"}, "tolerance": {"tolerance": 0.01}}.get(plan.special, {})
    basis = drawn_basis(rng, plan) if plan.given else None
    problem, samples, fresh = law.problem(labels), law.samples(rng, labels), law.samples(rng, labels)
    return Case(problem, samples, fresh, law.contexts(rng, SHOWN, labels), plan.what, basis, settings)


def flat(tree) -> list[float]:
    leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.ravel() for leaf in leaves]).tolist()


def number(value) -> float | None:
    return None if value is None else float(value)


def members_of(basis) -> list | None:
    """Which products of polynomials a basis is made of, where they are listed one by one."""
    while hasattr(basis, "basis"):
        basis = basis.basis
    members = getattr(getattr(basis, "index", None), "members", None)
    return None if members is None else np.asarray(members).tolist()


def answered(seed: int) -> dict:
    """The answer to the problem of a seed, as plain numbers; what was raised, as text."""
    found: dict = {"seed": seed}
    try:
        case = drawn_case(seed)
        found["what"] = case.what
        solution, found["seconds"] = harness.timed(
            lambda: cb.solve(case.problem, case.samples, case.basis, **case.settings)
        )
        errors, found["error_seconds"] = harness.timed(lambda: solution.uncertainty.error)
        found |= {
            "x": flat(solution.x),
            "policy": flat(solution.policy(case.contexts)),
            "result": str(solution.result),
            "converged": bool(solution.converged),
            "functions": int(solution.basis.size),
            "basis": repr(solution.basis.basis),
            "members": members_of(solution.basis.basis),
            "objective": float(solution.history["upper"][-1]),
            "standard_error": flat(errors),
            "steps": int(solution.history["step"][-1]),
            "oracles": json.loads(json.dumps(solution.stats["oracles"], default=float)),
        }
        certificate, found["certify_seconds"] = harness.timed(lambda: cb.certify(case.problem, solution, case.fresh))
        found["certificate"] = {
            "mode": certificate.mode,
            "gradient_norm": number(certificate.gradient_norm),
            "objective": number(certificate.objective),
            "regret": None if certificate.regret is None else number(certificate.regret.total),
            "policy_error": number(certificate.policy_error),
            "typical": number(certificate.typical),
        }
    except Exception as error:
        found["raised"] = f"{type(error).__name__}: {error}"
    return found


def worker(connection, seeds: list[int]) -> None:
    """Sends that it is ready, and then the answer to each problem."""
    warnings.simplefilter("ignore")
    connection.send(None)
    for count, seed in enumerate(seeds, 1):
        jax.config.update("jax_enable_x64", SPECIALS.get(seed % 20) != "single")
        connection.send(answered(seed))
        if count % CLEARED == 0:
            jax.clear_caches()


def no_answer(seed: int, why: str) -> dict:
    return {"seed": seed, "what": planned(np.random.default_rng(seed), seed).what, "raised": why}


def arrived(connection, limit: float) -> bool:
    """Whether something came within the limit; time for which all processes are stopped together does not count."""
    return any(connection.poll(SLICE) for _ in range(math.ceil(limit / SLICE)))


def answers_from(seeds: list[int], limit: float):
    """Answers one after the other; a process that takes too long, or dies, is replaced."""
    context = multiprocessing.get_context("spawn")
    while seeds:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=worker, args=(theirs, seeds[:TOGETHER]), daemon=True)
        process.start()
        theirs.close()
        try:
            ours.recv()
            for _ in range(len(seeds[:TOGETHER])):
                began = time.perf_counter()
                answer = ours.recv() if arrived(ours, limit) else no_answer(seeds[0], "timeout")
                answer["wall_seconds"] = time.perf_counter() - began
                yield answer
                seeds = seeds[1:]
                if answer.get("raised") == "timeout":
                    break
        except EOFError:
            yield no_answer(seeds[0], "the process died")
            seeds = seeds[1:]
        finally:
            process.kill()
            process.join()
            ours.close()


def written(path: Path, held: dict) -> None:
    """Replaces the record as a whole."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(held, indent=0))
    os.replace(beside, path)


def record(path: Path, first: int, last: int, limit: float, again: bool) -> None:
    """Records the answers of the seeds that the file does not hold yet; `again`: and of those that took too long."""
    held = json.loads(path.read_text()) if path.exists() else {}
    late = {seed for seed, answer in held.items() if again and answer.get("raised") == "timeout"}
    missing = [seed for seed in range(first, last) if str(seed) not in held or str(seed) in late]
    print(f"{len(missing)} problems to solve, {len(held)} are there; {os.path.dirname(cb.__file__)}", flush=True)
    for answer in answers_from(missing, limit):
        held[str(answer["seed"])] = answer
        written(path, held)
        print(line(answer), flush=True)
    done = list(held.values())
    good = sum(answer.get("converged", False) for answer in done)
    print(f"{len(done)} problems: {good} converged, {sum('raised' in answer for answer in done)} raised")


def line(answer: dict) -> str:
    """One problem in a line."""
    spent = f"{answer['seed']:4d} {answer.get('wall_seconds', np.nan):6.1f} s"
    if "result" not in answer:
        return f"{spent}  {answer['raised'][:100]}  ({answer.get('what', '')})"
    ended = answer["result"].split(":")[0][:30]
    judged = answer.get("certificate", {}).get("mode", answer.get("raised", "")[:100])
    return f"{spent}  {ended:10} {answer['functions']:4d} {answer['basis']}  {judged}  ({answer['what']})"


def apart(a, b, scale: float = 0.0) -> float:
    """The largest difference, each relative to the larger of the two and to no less than `scale`."""
    if a is None or b is None:
        return 0.0 if a is b else np.inf
    a, b = np.atleast_1d(np.asarray(a, float)), np.atleast_1d(np.asarray(b, float))
    if a.shape != b.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        gap = np.abs(a - b) / np.maximum(np.maximum(np.maximum(np.abs(a), np.abs(b)), scale), np.finfo(float).tiny)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.max(np.where(same, 0.0, np.where(np.isfinite(gap), gap, np.inf))))


def largest(*values) -> float:
    entries = np.abs(np.concatenate([np.ravel(np.asarray(value, float)) for value in values]))
    return float(np.max(entries[np.isfinite(entries)], initial=0.0))


def in_errors(a: dict, b: dict) -> float:
    """The largest difference of ``x`` in standard errors, where these are positive and finite."""
    error, x = np.asarray(a["standard_error"]), np.abs(np.subtract(a["x"], b["x"]))
    known = np.isfinite(error) & (error > 0)
    return float(np.max(x[known] / error[known])) if known.any() else np.nan


def differences(a: dict, b: dict) -> dict[str, float]:
    """How far two answers to the same problem are apart, quantity by quantity."""
    found = {}
    for name in ("x", "policy"):
        size = largest(a[name], b[name])
        found[name] = apart(a[name], b[name], TINY * size)
        found[f"{name}, of its largest entry"] = apart(a[name], b[name], size)
    found["x, in standard errors"] = in_errors(a, b)
    found["objective"] = apart(a["objective"], b["objective"])
    found["standard errors"] = apart(
        a["standard_error"], b["standard_error"], TINY * largest(a["standard_error"], b["standard_error"])
    )
    one, other = a.get("certificate"), b.get("certificate")
    if one and other:
        policy, value = np.asarray(a["policy"], float), abs(one["objective"] or 0.0)
        scales = {
            "gradient_norm": TINY * np.nan_to_num(one["typical"]),
            "objective": 0.0,
            "regret": SQUARED * value,
            "policy_error": SQUARED * float(np.nanmean(policy**2)),
        }
        found |= {f"certificate: {name}": apart(one[name], other[name], size) for name, size in scales.items()}
    return found


def same_basis(a: dict, b: dict) -> bool:
    return all(a.get(name) == b.get(name) for name in ("basis", "members"))


def compare(before: dict, after: dict) -> None:
    """Prints how far two records are apart."""
    seeds = sorted(set(before) & set(after), key=int)
    pairs = [(before[seed], after[seed]) for seed in seeds]
    print(f"{len(pairs)} problems in both, {len(before) - len(pairs)} and {len(after) - len(pairs)} in one alone")
    for word, held in (("before", [a for a, _ in pairs]), ("after", [b for _, b in pairs])):
        spent = [sum(one.get(name, 0.0) for one in held) for name in ("seconds", "error_seconds", "certify_seconds")]
        good, raised = sum(one.get("converged", False) for one in held), sum("raised" in one for one in held)
        print(f"{word:6}: {good} converged, {raised} raised; solve {spent[0]:.0f} s, errors {spent[1]:.0f} s, "
              f"certify {spent[2]:.0f} s")  # fmt: skip
    same = lambda name: sum(a.get(name) == b.get(name) for a, b in pairs)
    bases = sum(same_basis(a, b) for a, b in pairs)
    modes = sum(a.get("certificate", {}).get("mode") == b.get("certificate", {}).get("mode") for a, b in pairs)
    print(f"the same basis {bases}, result {same('result')}, exception (or none) {same('raised')}, "
          f"mode of the certificate {modes}")  # fmt: skip
    alike = [
        (differences(a, b), a, b) for a, b in pairs if a.get("converged") and b.get("converged") and same_basis(a, b)
    ]
    print(f"\n{len(alike)} with the same basis, both converged; relative differences:")
    print(f"{'':32} {'largest':>10} {'90%':>10} {'median':>10} {'in':>5}  at seed")
    for name in dict.fromkeys(name for found, _, _ in alike for name in found):
        known = [(found[name], a["seed"]) for found, a, _ in alike if name in found and not np.isnan(found[name])]
        gaps = np.array([gap for gap, _ in known])
        if len(gaps):
            middle = np.quantile(gaps, [0.9, 0.5], method="nearest")
            print(f"{name:32} {gaps.max():10.1e} {middle[0]:10.1e} {middle[1]:10.1e} {len(gaps):5d}  {max(known)[1]}")
    print(f"\nthe {WORST} farthest apart:")
    size = lambda found: max([value for value in found.values() if not np.isnan(value)], default=0.0)
    for found, a, _ in sorted(alike, key=lambda one: -size(one[0]))[:WORST]:
        most = sorted(((name, value) for name, value in found.items() if value > 0), key=lambda pair: -pair[1])
        print(f"{a['seed']:4d} {a['what']}, {a['basis']}")
        print("     " + ("; ".join(f"{name} {value:.1e}" for name, value in most) or "the same"))
    print("\nother basis, result, exception or mode:")
    for a, b in pairs:
        told = [f"{name}: {_short(a, name)} -> {_short(b, name)}" for name in ("basis", "result", "raised", "mode")
                if _short(a, name) != _short(b, name)]  # fmt: skip
        told += [] if same_basis(a, b) or a.get("basis") != b.get("basis") else ["other products in the basis"]
        if told:
            print(f"{a['seed']:4d} {a.get('what', '')}\n     {'; '.join(told)}; objective {_values(a, b)}")


def _short(answer: dict, name: str) -> str:
    value = answer.get("certificate", {}).get("mode") if name == "mode" else answer.get(name)
    return "none" if value is None else str(value) if name == "basis" else str(value).split(":")[0][:60]


def _values(a: dict, b: dict) -> str:
    return " -> ".join(f"{one['objective']:.8g}" if "objective" in one else "none" for one in (a, b))


def main() -> None:
    parser = harness.parser(
        __doc__,
        ("--out", Path, "the file that answers are recorded in"),
        ("--seeds", int, "the first, and one beyond the last", {"nargs": 2, "default": (0, 200)}),
        ("--limit", LIMIT, "seconds for one problem"),
        ("--again", False, "also those that took too long before"),
        ("--compare", Path, "two such files", {"nargs": 2, "metavar": ("BEFORE", "AFTER")}),
    )
    arguments = parser.parse_args()
    if arguments.compare:
        compare(*(json.loads(path.read_text()) for path in arguments.compare))
    elif arguments.out:
        record(arguments.out, *arguments.seeds, arguments.limit, arguments.again)
    else:
        parser.error("give --out or --compare")


if __name__ == "__main__":
    main()
