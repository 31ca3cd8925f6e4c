"""The claims of the paper, and what a verdict on one looks like: computed from runs, never written down."""

from collections.abc import Iterable
from typing import Any

CLAIMS = {
    "I1": "Three basis functions already give reasonable solutions; stocBiO[N] is unstable or needs many more.",
    "I2": "By N = 5 all three bases are within 3% of F_ref; stocBiO[N] needs N = 50.",
    "I3": "Beyond N = 5 the monomial lower-level error stops falling, while Chebyshev and Fourier go on and beat "
    "stocBiO[N] at every N.",
    "I4": "Chebyshev and Fourier reach the smallest loss from N = 10 on; stocBiO[N] needs N = 100 and still has a "
    "larger lower-level error.",
    "I5": "The same accuracy with an order of magnitude less memory, or a gap smaller by one with as much.",
    "H1": "A larger N gives stocBiO[N] a lower final validation loss, but slower convergence.",
    "H2": "For small N the training loss of stocBiO[N] is high and rising, since the weights rise on average.",
    "H3": "Chebyshev with N = 5 converges fastest and ends lowest on both losses; more functions add little.",
    "H4": "The monomial basis is worse than the others for large N.",
    "H5": "Fourier and Chebyshev perform nearly identically on this problem.",
    "H6": "stocBiO[N] fails where the policy varies sharply with the context, even for large N.",
    "P2": "The reduced lower-level solution is quasi-optimal: its squared error is at most L/mu times the best in the "
    "span (the paper has 2 L/mu).",
    "T1": "A stationary point of the reduced problem is one of the contextual problem if the basis is expressive.",
    "T2": "Sample complexity grows polynomially in 1/m_Phi, and as eps^-3 with a variance-reduced solver.",
    "T3": "Chebyshev: N grows like ln^d(1/eps) for analytic problems, and m_Phi is of order 1/N at least.",
    "C1": "DL-SGD and RT-MLMC are impractical on these problems.",
}


def verdict(
    name: str,
    holds: bool | None,
    measured: Any,
    threshold: str,
    how: str,
    why: str = "",
    corrected: bool = False,
) -> dict[str, Any]:
    """One entry of ``claims.json``; ``None`` stands for a claim that was not tested, `corrected` for one that holds in
    another form than the printed one."""
    word = "not tested" if holds is None else "fails" if not holds else "holds as corrected" if corrected else "holds"
    entry = {"id": name, "claim": CLAIMS[name], "verdict": word}
    entry |= {"measured": measured, "threshold": threshold, "how": how}
    return entry | ({"why": why} if why else {})


def complete(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """All claims in their order; those without a verdict are not tested, and say where they would be."""
    known = {entry["id"]: entry for entry in found}

    def missing(name: str) -> dict[str, Any]:
        if name == "C1":
            how = "Needs the direct methods DL-SGD and RT-MLMC, which do not reduce."
        elif name == "T2":
            how = "Measured by `cobilevel reproduce inverse` at the default and the full budget."
        else:
            how = f"Measured by `cobilevel reproduce {'cleaning' if name[0] == 'H' else 'inverse'}`."
        return verdict(name, None, "", "", how)

    return [known.get(name) or missing(name) for name in CLAIMS]
