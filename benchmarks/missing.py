"""Accuracy as samples go missing, at random and in blocks: gaps of our own, or a fill before the same model.

    OMP_NUM_THREADS=1 python benchmarks/missing.py --data-root FOLDER --out results/missing

FOLDER holds ucr/<problem>_TRAIN.tsv and _TEST.tsv (first column the class). Samples are taken away from training and
test cases alike, with one seed. Methods:

    gap            WaveSSMClassifier(missing="gap"): NaN is not pooled
    hold           WaveSSMClassifier(missing="hold"), the default: the last value stands in for NaN
    interpolation  straight lines over the gaps, then WaveSSMClassifier
    zero           zeros in the gaps, then WaveSSMClassifier
    MiniRocket     straight lines over the gaps, then aeon's MiniRocketClassifier, which takes no NaN

aeon is not a dependency of wavessm: install it beside it. Writes missing.csv, a row per fit, and
README.md with the means over the problems.
"""

from __future__ import annotations

import importlib.util
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from common import arguments
from wavessm.training.record import provenance, write_csv

PROBLEMS = ("Coffee", "FaceFour", "ArrowHead", "ECGFiveDays")
SHARES = (0.1, 0.3, 0.5)
ABOUT = """# Missing samples

Samples of training and test cases are taken away, at random or in blocks of a tenth of the signal. `gap` and `hold` are
the classifier's own `missing=`; `interpolation` and `zero` fill the gaps before the same classifier; MiniRocket (aeon)
reads the interpolated signals, as it takes no NaN."""
BLOCK = 0.1
"""Length of a block, as a share of a signal."""


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Signals (cases, length) and classes."""
    table = np.loadtxt(path, delimiter="\t", ndmin=2)
    return table[:, 1:], table[:, 0].astype(int)


def take_away(X: np.ndarray, share: float, pattern: str, rng: np.random.Generator) -> np.ndarray:
    """X with NaN in place of a share of the samples of each case, at random or in blocks."""
    X, length = X.copy(), X.shape[1]
    count, block = round(share * length), max(1, round(BLOCK * length))
    for case in X:
        if pattern == "random":
            case[rng.choice(length, count, replace=False)] = np.nan
        while (rest := count - int(np.isnan(case).sum())) > 0:
            start = rng.integers(0, length - min(block, rest) + 1)
            case[start : start + min(block, rest)] = np.nan
    return X


def interpolate(X: np.ndarray) -> np.ndarray:
    """X with straight lines over the gaps, the first and last value beyond the ends."""
    t = np.arange(X.shape[1])
    return np.stack([np.interp(t, t[~np.isnan(case)], case[~np.isnan(case)]) for case in X])


def methods(seed: int) -> dict[str, tuple[Any, Any]]:
    """A fill and a model by name."""
    from wavessm.estimators import WaveSSMClassifier

    def ours(**options: Any) -> WaveSSMClassifier:
        return WaveSSMClassifier(method="features", random_state=seed, device="cpu", **options)

    made = {
        "gap": (np.copy, lambda: ours(missing="gap")),
        "hold": (np.copy, lambda: ours(missing="hold")),
        "interpolation": (interpolate, ours),
        "zero": (np.nan_to_num, ours),
    }
    if importlib.util.find_spec("aeon"):
        from aeon.classification.convolution_based import MiniRocketClassifier

        made["MiniRocket"] = (interpolate, lambda: MiniRocketClassifier(random_state=seed, n_jobs=1))
    return made


def main() -> None:
    parser = arguments(__doc__, "results/missing")
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--problems", nargs="*", default=PROBLEMS)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    rows = []
    for problem in given.problems:
        parts = [read(given.data_root / "ucr" / f"{problem}_{part}.tsv") for part in ("TRAIN", "TEST")]
        for pattern, share in [("none", 0.0), *((p, s) for p in ("random", "blocks") for s in SHARES)]:
            rng = np.random.default_rng(given.seed)
            (X, y), (X_test, y_test) = ((take_away(X, share, pattern, rng), y) for X, y in parts)
            for name, (fill, make) in methods(given.seed).items():
                score = float(np.mean(make().fit(fill(X), y).predict(fill(X_test)) == y_test))
                rows.append({"problem": problem, "pattern": pattern, "share": share, "method": name, "accuracy": score,
                             "train_cases": len(y), "test_cases": len(y_test), "length": X.shape[1],
                             "seed": given.seed})  # fmt: skip
                print({key: rows[-1][key] for key in ("problem", "pattern", "share", "method", "accuracy")}, flush=True)
    write_csv(given.out / "missing.csv", rows)
    aeon = f"aeon {metadata.version('aeon')}" if importlib.util.find_spec("aeon") else "without aeon"
    about = f"Mean accuracy over {len(given.problems)} problems ({', '.join(given.problems)}), published splits, seed "
    about += f"{given.seed}, {aeon}; every fit is in `missing.csv`."
    words = [ABOUT, table(means(rows)), about, f"Made by {provenance('python benchmarks/missing.py')}."]
    (given.out / "README.md").write_text("\n\n".join(words) + "\n")


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean accuracy over the problems, a row for each pattern and share."""
    made = []
    for pattern, share in dict.fromkeys((row["pattern"], row["share"]) for row in rows):
        own = [row for row in rows if (row["pattern"], row["share"]) == (pattern, share)]
        where = "at random" if pattern == "random" else "in blocks"
        what = "nothing" if pattern == "none" else f"{100 * share:.0f} %, {where}"
        names = dict.fromkeys(row["method"] for row in rows)
        scores = {name: f"{np.mean([r['accuracy'] for r in own if r['method'] == name]):.3f}" for name in names}
        made.append({"taken away": what, **scores})
    return made


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of `means` in Markdown."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
