r"""A confounded curve through instruments (``cb.gallery.instruments``): error by sample size, and weak instruments.

- ``--curves 10``: so many data sets for each number of rows. The root mean squared error of the curve between the 1%
  and the 99% quantile of fares: splines by the library with nothing set, plain two-stage least squares of
  ``linearmodels`` (a straight line), the same with these splines and powers of the instrument, and regression of sales
  on fares.
- ``--weak 20``: a straight line, for each strength of the instrument. How often the 95% interval holds the best slope,
  and how often it is withheld; two-stage least squares, LIML and GMM of ``linearmodels`` on the same data.
"""

import numpy as np
from linearmodels.iv import IV2SLS, IVGMM, IVLIML

import cobilevel as cb
from cobilevel.gallery.instruments import instruments

BESIDE = {"2SLS": IV2SLS, "LIML": IVLIML, "GMM": IVGMM}


def curves(seeds: int) -> None:
    """The error of the curve by rows."""
    print(f"{'rows':>6} {'splines':>8} {'2SLS':>8} {'2SLS spl.':>9} {'OLS':>8}  functions")
    for rows in (500, 2000, 8000, 32000):
        errors, sizes = [], []
        for seed in range(seeds):
            case = instruments(seed, train=rows, test=100)
            solution = cb.solve(case.problem, case.train)
            fare, sales = (np.asarray(case.train.eta[name], float) for name in ("treatment", "outcome"))
            span, z = np.linspace(*np.quantile(fare, [0.01, 0.99]), 200), np.asarray(case.train.xi, float)
            table = lambda t, basis=case.truth.basis: np.asarray(basis(t), float)
            columns = table(fare)
            line = IV2SLS(sales, columns[:, :1], columns[:, 1:2], z).fit().params.to_numpy()
            powers = z[:, None] ** np.arange(1, columns.shape[1])
            same = IV2SLS(sales, columns[:, :1], columns[:, 1:], powers).fit().params.to_numpy()
            plain = np.linalg.lstsq(columns, sales, rcond=None)[0]
            ways = (
                table(span) @ np.asarray(solution.x),
                line[0] + line[1] * span,
                table(span) @ same,
                table(span) @ plain,
            )
            errors.append([np.mean((way - case.truth.curve(span)) ** 2) for way in ways])
            sizes.append(solution.basis.size)
        rms = np.sqrt(np.mean(errors, axis=0))
        print(
            f"{rows:6} {rms[0]:8.3f} {rms[1]:8.3f} {rms[2]:9.3f} {rms[3]:8.3f}  {min(sizes)} to {max(sizes)}",
            flush=True,
        )


def weak(seeds: int) -> None:
    """Coverage of the slope by strength, 1000 rows."""
    print(
        f"{'strength':>8} {'F':>7} {'withheld':>8} {'covered':>8} | covered: {' '.join(f'{way:>5}' for way in BESIDE)}"
    )
    for strength in (0.01, 0.03, 0.1, 0.3):
        withheld, covered, first = 0, [], []
        beside = {way: [] for way in BESIDE}
        for seed in range(seeds):
            case = instruments(seed, train=1000, test=100, strength=strength, knots=2)
            solution = cb.solve(case.problem, case.train)
            slope = case.truth.x[1]
            low, high = solution.uncertainty.interval[:, 1]
            if solution.converged and np.isfinite(low) and np.isfinite(high):
                covered.append(low <= slope <= high)
            else:
                withheld += 1
            fare, sales = (np.asarray(case.train.eta[name], float) for name in ("treatment", "outcome"))
            z = np.asarray(case.train.xi, float)
            r = np.corrcoef(fare, z)[0, 1]
            first.append((len(z) - 2) * r**2 / (1 - r**2))
            for way, kind in BESIDE.items():
                fit = kind(sales, np.ones(len(z)), fare, z).fit()
                beside[way].append(abs(fit.params.iloc[1] - slope) <= 1.96 * fit.std_errors.iloc[1])
        share = f"{100 * np.mean(covered):7.0f}%" if covered else f"{'':8}"
        others = " ".join(f"{100 * np.mean(held):4.0f}%" for held in beside.values())
        print(f"{strength:8} {np.median(first):7.1f} {withheld:4} of {seeds} {share} |          {others}", flush=True)


def main() -> None:
    import harness

    given = harness.arguments(
        __doc__, ("--curves", 0, "data sets a number of rows"), ("--weak", 0, "data sets a strength")
    )
    if given.curves:
        curves(given.curves)
    if given.weak:
        weak(given.weak)


if __name__ == "__main__":
    main()
