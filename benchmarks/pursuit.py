"""Matching pursuit: ours against scikit-learn's on the same dictionary, after checking that both choose the same atoms.

    python benchmarks/pursuit.py --out results/pursuit

The target is two steps with a little noise. Without noise scikit-learn stops after a few atoms: it takes an atom that
is orthogonal to the target, as a narrow wavelet on a plateau is, for the end of the pursuit. `noiseless_atoms` is the
number it had chosen by then. Building the dictionary is timed for itself; both are handed it ready. Times are processor
seconds of one thread, the best of several runs taken in turns, so that a busy machine disturbs both alike.
"""

from __future__ import annotations

import time
import warnings

import numpy as np

from common import arguments, best_of, report
from wavessm_lab.studies.pursuit import matching_pursuit
from wavessm_lab.studies.steps import MOTHERS, TARGETS, Atoms, dictionary

try:
    from sklearn.linear_model import OrthogonalMatchingPursuit
    from threadpoolctl import threadpool_limits
except ImportError:
    raise SystemExit("This benchmark compares with scikit-learn: pip install scikit-learn.") from None

BUDGET = 256
NOISE = 0.01


def theirs(X: np.ndarray, f: np.ndarray) -> np.ndarray:
    """Atoms that scikit-learn chooses, sorted. X (length, atoms), f (length,)"""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # "ended prematurely": seen by the number of atoms
        model = OrthogonalMatchingPursuit(n_nonzero_coefs=BUDGET, fit_intercept=False).fit(X, f)
    return np.flatnonzero(model.coef_)


def main() -> None:
    parser = arguments(__doc__, "results/pursuit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="only the dictionary of 24 scales and 256 shifts")
    options = parser.parse_args()
    threadpool_limits(1)
    sizes = [(1024, 24, 256)] if options.small else [(1024, 24, 256), (2048, 48, 512)]
    rows = []
    for length, scales, shifts in sizes:
        f = TARGETS["two"].values(np.linspace(0, 1, length))
        noisy = f + NOISE * np.random.default_rng(0).standard_normal(length)
        for wavelet in MOTHERS:
            description = Atoms(wavelet, length, scales, shifts)
            build = best_of(lambda description=description: dictionary(description), 1, time.process_time)
            D = dictionary(description)
            X = np.stack([D.atom(i)[0] for i in range(D.n)]).T
            same = set(theirs(X, noisy)) == set(matching_pursuit(D, noisy, BUDGET).chosen)
            if not same:
                raise SystemExit(f"{wavelet}, {length} points: the atoms differ, no time reported.")
            ours_s = theirs_s = float("inf")
            for _ in range(options.repeats):
                ours_s = min(ours_s, best_of(lambda D=D, f=noisy: matching_pursuit(D, f, BUDGET), 1, time.process_time))
                theirs_s = min(theirs_s, best_of(lambda X=X, f=noisy: theirs(X, f), 1, time.process_time))
            rows.append(
                {
                    "wavelet": wavelet,
                    "length": length,
                    "atoms": D.n,
                    "budget": BUDGET,
                    "same_atoms": same,
                    "build_s": build,
                    "ours_s": ours_s,
                    "sklearn_s": theirs_s,
                    "ratio": theirs_s / ours_s,
                    "noiseless_atoms": len(theirs(X, f)),
                }
            )
    report(rows, options.out / "pursuit.csv", "pursuit.py")


if __name__ == "__main__":
    main()
