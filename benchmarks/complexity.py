"""Sample complexity on a stream, and how it grows when the basis is badly conditioned.

1. Samples against the norm of the true gradient, for a plain solver (SOBA) and a variance-reduced one (FdeHBO), on a
   convex and on a nonconvex F: the slope in a log-log plot over a decade or more, with a bootstrap interval over seeds.
   Theory, worst case: -4 and -3.
2. Samples until 1% of the gap at default steps (not counting those for measuring the steps), for the same span of
   functions given as Monomial, Chebyshev and Orthonormal, against 1/m_Phi, the least eigenvalue of their Gram matrix.

Run: python benchmarks/complexity.py
"""

import jax

jax.config.update("jax_enable_x64", True)

import cobilevel as cb
from cobilevel.paper.theory import BATCH, SEEDS, conditioning, growth, slope


def main():
    print(f"stream, batches of {BATCH}, {SEEDS} seeds: samples ~ norm^slope")
    print(f"{'F':10} {'solver':8} {'slope':>7} {'95% interval':>18} {'theory':>7} {'norms':>20} {'samples':>20}")
    for label, bumps in (("convex", 0.0), ("nonconvex", 0.4)):
        for kind, power, momentum, theory, steps in (
            (cb.SOBA, 1 / 2, None, -4, 2**19),
            (cb.FdeHBO, 1 / 3, cb.PolynomialDecay(1.0, 2 / 3, 1.0), -3, 2**17),
        ):
            found = slope(kind, bumps, power, momentum, steps)
            norms, samples = ("{:.2g} to {:.2g}".format(*pair) for pair in (found["norms"], found["samples"]))
            value, interval = found["value"], f"[{found['low']:.2f}, {found['high']:.2f}]"
            print(
                f"{label:10} {kind.__name__:8} {value:7.2f} {interval:>18} {theory:7} {norms:>20} {samples:>20}",
                flush=True,
            )
    print("\nthe same span in three bases: SOBA at its defaults until 1% of the gap, measuring not counted")
    print(f"{'n':>2} {'basis':12} {'m_Phi':>9} {'M_Phi':>6} {'samples':>11}")
    rows = conditioning()
    for row in rows:
        spent = "not reached" if row["samples"] is None else f"{row['samples']:.2e}"
        print(f"{row['n']:2} {row['basis']:12} {row['m']:9.2e} {row['M']:6.2f} {spent:>11}")
    print("samples grow as (1/m_Phi)^{:.2f} +- {:.2f} over all three".format(*growth(rows)))


if __name__ == "__main__":
    main()
