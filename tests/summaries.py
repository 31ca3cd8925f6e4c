"""Made-up results of an experiment, as its page is given them."""

import math

import numpy as np

FAMILIES, SIZES, SOLVERS = (
    ("R_Chebyshev", "R_Fourier", "R_monomial", "stocBiO"),
    (3, 5, 10, 20, 50),
    ("StocBiO", "Newton"),
)
RATES = {"R_Chebyshev": 1.6, "R_Fourier": 1.4, "R_monomial": 1.3, "stocBiO": 0.9}
HOSTILE = "</script><script>window.hostile = 1</script><!-- \u2028 ${1} $title & \"quotes\" 'too'"


def interval(x, y, above=0.0, **rest):
    """A series with intervals in proportion to its height above a level."""
    y = np.asarray(y, dtype=float)
    low, high = ((above + share * (y - above)).tolist() for share in (0.8, 1.3))
    return {"x": list(x), "y": y.tolist(), "low": low, "high": high, **rest}


def panel(name, figure, title, series, xlabel, ylabel, xscale="log", yscale="log", lines=()):
    return {
        "id": name, "figure": figure, "title": title, "xlabel": xlabel, "ylabel": ylabel, "xscale": xscale,
        "yscale": yscale, "note": "Mean over 20 instances; bands are 95 % intervals of the mean.",
        "series": series, "lines": list(lines),
    }  # fmt: skip


def policies():
    """Flows on two roads, the policy off by a ripple that shrinks with the size; monomials have no Newton at 50."""
    demand = np.linspace(0.0, 1.0, 201)
    exact = np.stack([np.maximum(demand - 0.16, 0) ** 0.8 / 2, demand - np.maximum(demand - 0.16, 0) ** 0.8 / 2])
    entries = []
    for k, (basis, size, solver) in enumerate((b, n, s) for b in FAMILIES for n in SIZES for s in SOLVERS):
        if (basis, size, solver) == ("R_monomial", 50, "Newton"):
            continue
        ripple = 0.2 * size ** -RATES[basis] * np.cos((2 * size + k) * demand + np.array([[0.0], [1.0]]))
        error = np.linalg.norm(ripple, axis=0)
        error[[7, 8]] = np.nan, 0.0
        entry = {"basis": basis, "N": size, "solver": solver, "error": error.tolist()}
        entries.append(entry | {"policy": (exact + ripple).tolist(), "exact": exact.tolist()})
    context = {"label": "demand", "values": demand.tolist()}
    return {"context": context, "quantity": "flow", "components": ["edge 1", "edge 2"], "entries": entries}


def inverse():
    """Errors against the size of the basis; one run went wrong and left a gap."""
    size = np.array(SIZES)
    drop = lambda f, c: 1.4 * c * size ** -RATES[f] + c * 1e-3
    loss = [interval(SIZES, 1 + drop(f, 0.6), 1.0, label=f) for f in FAMILIES]
    error = [interval(SIZES, drop(f, 0.3), label=f) for f in FAMILIES]
    error[2]["y"][2] = error[2]["low"][2] = math.nan
    error[3]["low"][4] = -1e-3
    rows = [
        [f, n, s, 1 + 0.6 / n, 0.3 * n ** -RATES[f], 12.5 * n, None] for f in FAMILIES for n in SIZES for s in SOLVERS
    ]
    return {
        "experiment": "inverse", "budget": "quick", "title": "Road capacities inferred from observed flows",
        "lead": "Twenty instances of the two-road network, four families of bases at five sizes, each solved by "
        "StocBiO and by Newton's method, and judged with exact flows on held-out samples.",
        "about": [["Instances", "20, seeds 0 to 19"], ["Samples", "1000 for training, 4000 for testing"],
                  ["Machine", "2 cores, no accelerator"], ["Wall time", "6 min 12 s"], ["Versions", "jax 0.10.2"]],
        "panels": [
            panel("loss", "Figure 1", "Test loss against the size of the basis", loss, "basis size N", "loss / F_ref",
                  lines=[{"label": "F_ref", "y": 1.0}]),
            panel("error", "Figure 1", "Error of the policy", error, "basis size N", "mean squared error of the flows"),
        ],
        "tables": [{"id": "all", "title": "Every run", "rows": rows, "note": "Means over the instances.",
                    "columns": ["basis", "N", "solver", "loss over F_ref", "policy error", "ms", "capacity error"]}],
        "policies": policies(),
    }  # fmt: skip


def cleaning():
    """Curves over time, labels that name a size, no policies, hostile words everywhere."""
    seconds = np.linspace(0.01, 30, 400)
    labels = ("R_Chebyshev[5]", "R_Chebyshev[20]", "R_Fourier[10]", "one weight for all")
    falls = [interval(seconds, 0.3 + 0.5 * np.exp(-seconds / (3 + k)), label=w) for k, w in enumerate(labels)]
    falls.append(interval([1, 2], [math.inf, math.nan], label=HOSTILE))
    base = inverse() | {"experiment": "cleaning", "title": HOSTILE, "lead": HOSTILE, "policies": None}
    base["panels"] = [
        panel(k, f"{k} {HOSTILE}", HOSTILE, falls, "seconds", "loss $x_$", k, "linear") for k in ("linear", "log")
    ]
    base["tables"] = [{"id": "t", "title": HOSTILE, "columns": [HOSTILE], "rows": [[HOSTILE], [None]], "note": HOSTILE}]
    return base


def claims():
    """Four statements on each family; two fail, three were not tested."""
    statements = (
        ("the loss on held-out samples at N = 10 is within half a per cent of the reference", 1.0032, "at most 1.005"),
        ("the error of the policy falls with every larger basis", {"N = 10": 0.0123, "N = 50": 2.3e-4}, "decreasing"),
        ("StocBiO and Newton's method end at the same capacities", "0.41 to 0.47 per cent", "within 1 per cent"),
        ("fifty functions are no worse than twenty, in every instance", 20, "20 of 20 instances"),
    )
    made = []
    for family in FAMILIES:
        for text, measured, threshold in statements:
            k = len(made)
            verdict = {6: "fails", 11: "fails", 3: "not tested", 7: "not tested", 15: "not tested"}.get(k, "holds")
            claim = {"id": f"I{k + 1}", "claim": f"{family}: {text}.", "verdict": verdict, "threshold": threshold}
            claim["measured"] = None if verdict == "not tested" else measured
            claim["how"] = "The mean over the instances, the flows solved exactly at each context."
            claim["reading"] = "" if verdict == "not tested" else "every reading" if verdict == "holds" else "none"
            claim["readings"] = [{"reading": "medians", "verdict": verdict, "measured": "0.4"}]
            if verdict == "fails":
                claim["why"] = "The noise at this budget exceeds the difference; ten times the samples would show it."
            made.append(claim)
    return made
