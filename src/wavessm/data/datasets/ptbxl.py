"""PTB-XL: 12-lead ECGs of ten seconds, six multi-label tasks, in the layout PhysioNet publishes.

Records are read once (checked, cached as int16) and shared by the tasks; labels are read each time. Folds 1 to 8 are
the training part, 9 validation, 10 test. A code counts as present whatever its likelihood; records without a label
of the task are left out. One mean and one standard deviation over all training samples and leads scale the signals.
"""

from __future__ import annotations

import ast
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wavessm.data.cache import Prepared, cache_folder, cached, fingerprint
from wavessm.data.source import Arrays, DataInfo, DataSet
from wavessm.data.tables import need_columns, read_table
from wavessm.data.wfdb_files import check_samples, read_header, read_samples
from wavessm.errors import DataError, OptionError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("wavessm.data")

TASKS = ("all", "diag", "sub-diag", "super-diag", "form", "rhythm")
LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
PUBLISHED = "https://physionet.org/content/ptb-xl/1.0.3/"
SUFFIX = {100: "lr", 500: "hr"}
FOLDS = {"train": range(1, 9), "val": range(9, 10), "test": range(10, 11)}


def load_ptbxl(root: str | Path, task: str = "super-diag", rate: int = 100, skip_bad: bool = False) -> DataSet:
    """One of the six tasks. root: the release, or a data folder with `ptbxl` (or the unzipped release) in it.

    x is (batch, 1000, 12) at 100 Hz, (batch, 5000, 12) at 500 Hz; y is (batch, classes) of 0 and 1. Raises `DataError`
    in one line for missing or damaged files; with `skip_bad` damaged records are left out and listed in `info.skipped`.
    """
    if task not in TASKS:
        raise unknown_name("PTB-XL task", task, TASKS)
    if rate not in SUFFIX:
        raise OptionError(f"load_ptbxl: rate is {rate!r}, expected 100 or 500 (Hz).")
    folder = find_ptbxl(root)
    table = read_database(folder)
    names = table[f"filename_{SUFFIX[rate]}"].tolist()
    prepared = _signals(folder, names, rate)
    bad: dict[str, str] = prepared.notes["bad"]
    if bad and not skip_bad:
        first, more = next(iter(bad.values())), f" ({len(bad) - 1} more records are bad too)" if len(bad) > 1 else ""
        raise DataError(f"{first}{more} Fetch it again from {PUBLISHED}, or go on without it with skip_bad.")
    if bad:
        log.warning("PTB-XL: %d bad records left out: %s", len(bad), ", ".join(list(bad)[:10]))
    labels, classes = task_labels(folder, table, task)
    good = np.array([name not in bad for name in names])
    kept = labels.any(axis=1) & good
    place = np.cumsum(good) - 1  # row of a record among the signals
    folds = table["strat_fold"].to_numpy()
    parts = {part: np.flatnonzero(kept & np.isin(folds, list(numbers))) for part, numbers in FOLDS.items()}
    for part, rows in parts.items():
        if not rows.size:
            raise DataError(f"PTB-XL {task}: no record in the {part} part (folds {list(FOLDS[part])}) of {folder}.")
    _check_seen(labels[parts["train"]], classes, task)
    return _assemble(task, prepared, {p: (place[r], labels[r]) for p, r in parts.items()}, classes, (rate, tuple(bad)))


def _assemble(
    task: str,
    prepared: Prepared,
    parts: dict[str, tuple[np.ndarray, np.ndarray]],
    classes: tuple[str, ...],
    about: tuple[int, tuple[str, ...]],
) -> DataSet:
    signals, gain = prepared.arrays["signals"], float(prepared.notes["gain"])
    train = parts["train"][0]
    count = train.size * signals.shape[1] * signals.shape[2]
    mean = prepared.arrays["sums"][train].sum() / count
    std = float(np.sqrt(prepared.arrays["squares"][train].sum() / count - mean**2))
    if std == 0:
        raise DataError(f"PTB-XL {task}: every training record is constant at {mean / gain} mV; nothing to learn.")
    affine = (1 / std, -mean / std)
    sources = {
        part: Arrays(torch.from_numpy(signals[rows]), torch.from_numpy(y.astype(np.float32)), affine=affine)
        for part, (rows, y) in parts.items()
    }
    rate, skipped = about
    info = DataInfo(
        "multilabel",
        d_input=signals.shape[2],
        d_output=len(classes),
        length=signals.shape[1],
        classes=classes,
        channels=LEADS,
        scale=((float(mean) / gain,), (std / gain,)),
        rate=float(rate),
        skipped=skipped,
    )
    return DataSet(f"ptbxl-{task}", sources["train"], sources["val"], sources["test"], info)


def find_ptbxl(root: str | Path) -> Path:
    """The folder with ptbxl_database.csv: `root` itself, `root/ptbxl`, or an unzipped release below `root`."""
    root = Path(root)
    for folder in (root, root / "ptbxl", *sorted(root.glob("ptb-xl*"))):
        if (folder / "ptbxl_database.csv").is_file():
            return folder
    raise DataError(f"PTB-XL: no ptbxl_database.csv in {root} or {root / 'ptbxl'}; it is published at {PUBLISHED}.")


def read_database(folder: Path) -> pd.DataFrame:
    """ptbxl_database.csv as far as it is used: ecg_id, scp_codes (dict), strat_fold, filename_lr, filename_hr."""
    path = folder / "ptbxl_database.csv"
    columns = ["ecg_id", "scp_codes", "strat_fold", "filename_lr", "filename_hr"]
    table = read_table(path)
    need_columns(table, columns, path)
    table = table[columns].copy()
    folds = table["strat_fold"]
    if not folds.isin(range(1, 11)).all():
        row = int(np.flatnonzero(~folds.isin(range(1, 11)))[0])
        raise DataError(f"{path}: strat_fold is {folds.iloc[row]!r} in line {row + 2}, expected 1 to 10.")
    codes = []
    for row, text in enumerate(table["scp_codes"]):
        try:
            codes.append(ast.literal_eval(text))
        except (ValueError, SyntaxError, TypeError) as reason:
            raise DataError(f"{path}: scp_codes in line {row + 2} is {text!r}, expected a dict.") from reason
    table["scp_codes"] = codes
    return table


def task_labels(folder: Path, table: pd.DataFrame, task: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels (records, classes) bool, and the classes in alphabetical order."""
    path = folder / "scp_statements.csv"
    if not path.is_file():
        raise DataError(f"PTB-XL: {path} is missing; it is published at {PUBLISHED}.")
    statements = read_table(path, index=True)
    need_columns(statements, ["diagnostic", "form", "rhythm", "diagnostic_class", "diagnostic_subclass"], path)
    flag = {"all": None, "form": "form", "rhythm": "rhythm"}.get(task, "diagnostic")
    chosen = statements if flag is None else statements[statements[flag] == 1]
    title = {"super-diag": "diagnostic_class", "sub-diag": "diagnostic_subclass"}.get(task)
    meaning: dict[str, Any] = {code: chosen.at[code, title] if title else code for code in chosen.index}
    known = set(statements.index)
    found = []
    for row, codes in enumerate(table["scp_codes"]):
        if not known.issuperset(codes):
            stray = sorted(set(codes) - known)[0]
            raise DataError(f"{folder / 'ptbxl_database.csv'}: code {stray!r} in line {row + 2} is not in {path.name}.")
        found.append({meaning[code] for code in codes if code in meaning})
    classes = tuple(sorted(set().union(*found)))
    column = {name: i for i, name in enumerate(classes)}
    labels = np.zeros((len(found), len(classes)), bool)
    for row, names in enumerate(found):
        labels[row, [column[name] for name in names]] = True
    return labels, classes


def _check_seen(labels: np.ndarray, classes: tuple[str, ...], task: str) -> None:
    seen = np.flatnonzero(labels.any(axis=0))
    unseen = [name for i, name in enumerate(classes) if i not in seen]
    if unseen:
        raise DataError(f"PTB-XL {task}: label {unseen[0]} is never positive in training (folds 1 to 8); "
                        f"the release is incomplete, see {PUBLISHED}.")  # fmt: skip


def _signals(folder: Path, names: list[str], rate: int) -> Prepared:
    """All sound records as one array, from the cache where it is sound: signals, sums and squares of each record."""
    records = folder / f"records{rate}"
    if not records.is_dir():
        raise DataError(f"PTB-XL: the folder {records} is missing; it is published at {PUBLISHED}.")
    key = {"files": fingerprint([records, folder / "ptbxl_database.csv"], folder), "rate": rate, "layout": 1}
    return cached(cache_folder(folder), f"ptbxl-{rate}", key, lambda: _read_signals(folder, names, rate))


def _read_signals(folder: Path, names: list[str], rate: int) -> Prepared:
    signals: np.ndarray | None = None
    bad: dict[str, str] = {}
    gain, good = 0.0, 0
    for name in names:
        path = os.path.join(folder, name)
        try:
            header = read_header(path)
            if not header.plain:
                raise DataError(f"{path}: not a single file in WFDB format 16, as PTB-XL is published.")
            values = read_samples(path, header)
            check_samples(path, header, values)
            if signals is None:
                signals = np.empty((len(names), *values.shape), np.int16)
                gain = header.leads[0].gain
            if tuple(lead.name.upper() for lead in header.leads) != LEADS or header.rate != rate:
                raise DataError(f"{path}: leads or rate are not those of PTB-XL at {rate} Hz.")
            if values.shape != signals.shape[1:]:
                raise DataError(f"{path}: {len(values)} samples, the records before it have {signals.shape[1]}.")
            if any(lead.gain != gain or lead.baseline for lead in header.leads):
                raise DataError(f"{path}: gain or baseline differ between leads or records (expected {gain}, 0).")
        except DataError as reason:
            bad[name] = str(reason)
            continue
        signals[good] = values
        good += 1
    if signals is None or not good:
        raise DataError(
            f"PTB-XL: none of the {len(names)} records could be read; the first: {next(iter(bad.values()))}"
        )
    signals = signals[:good]
    sums = signals.sum(axis=(1, 2), dtype=np.int64)
    squares = np.array([np.square(record, dtype=np.int64).sum() for record in signals])
    return Prepared({"signals": signals, "sums": sums, "squares": squares}, {"bad": bad, "gain": gain})
