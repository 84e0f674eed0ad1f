"""PTB-XL: 12-lead ECGs of ten seconds, six multi-label tasks, in the layout PhysioNet publishes.

Records are read once (checked, cached as int16) and shared by the tasks; labels are read each time. Folds 1 to 8 are
the training part, 9 validation, 10 test. A code counts as present whatever its likelihood; records without a label
of the task are left out. One mean and one standard deviation over all training samples and leads scale the signals.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from wavessm.data.cache import Prepared, cached, read_each, sums_of
from wavessm.data.files import inside
from wavessm.data.info import DataInfo, DataSet, split_set
from wavessm.data.published import Published
from wavessm.data.tables import need_columns, read_table
from wavessm.data.task import PublishedOptions, Recipe, Task, data_root
from wavessm.errors import DataError, unknown_name

if TYPE_CHECKING:
    import pandas as pd

Labels = Literal["super-diag", "sub-diag", "diag", "all", "form", "rhythm"]
LABELS: tuple[Labels, ...] = get_args(Labels)
LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
GAIN = 1000.0  # units a millivolt
MISSING = -32768  # WFDB's mark for "no sample" in format 16
HOMEPAGE = "https://physionet.org/content/ptb-xl/1.0.3/"
NAMES = {100: "filename_lr", 500: "filename_hr"}
FOLDS = {"train": range(1, 9), "val": range(9, 10), "test": range(10, 11)}


@dataclass(frozen=True)
class PtbxlOptions(PublishedOptions):
    """x (batch, 1000, 12) at 100 Hz, (batch, 5000, 12) at 500 Hz; y (batch, classes) of 0 and 1."""

    labels: Labels = "super-diag"
    """Label set."""
    sampling_rate: Literal[100, 500] = 100
    """Sampling rate of the records in hertz."""
    leads: str = ""
    """Leads by name, with commas: II,V5; default all twelve. each: a model of any one lead; every lead of a training
    record is a case, lead I is validated and tested."""
    skip_bad: bool = False
    """Leave out records that cannot be read, and list them."""

    def files(self) -> list[Path]:
        places = ["", "ptbxl", *(path.name for path in sorted(data_root(self.root).glob("ptb-xl*")))]
        names = ["ptbxl_database.csv", "scp_statements.csv", f"records{self.sampling_rate}"]
        missing, source = f"PTB-XL: no folder with {', '.join(names)}", f"it is published at {HOMEPAGE}."
        return [self.find(places, names, missing, source) / name for name in names]

    def load(self, seed: int) -> DataSet:
        labels, rate, (database, _, records) = self.labels, self.sampling_rate, self.files()
        folder = database.parent
        table = read_database(folder)
        names = table[NAMES[rate]].tolist()
        prepared = cached(f"ptbxl-{rate}", folder, [records, database], {}, lambda: _read_all(folder, names, rate))
        skipped = prepared.bad_files(self.skip_bad, "PTB-XL")
        present, classes = read_labels(folder, table, labels)
        good = ~table[NAMES[rate]].isin(skipped).to_numpy()
        place = np.cumsum(good) - 1  # row of a record among the signals
        signals, sums, squares = (prepared.arrays[name] for name in ("signals", "sums", "squares"))
        arrays: dict[str, np.ndarray] = {}
        train = np.array([], int)
        for part, folds in FOLDS.items():
            rows = np.flatnonzero(present.any(axis=1) & good & table["strat_fold"].isin(list(folds)).to_numpy())
            if not rows.size:
                raise DataError(f"PTB-XL {labels}: no record in the {part} part (folds {list(folds)}) of {folder}.")
            train = place[rows] if part == "train" else train
            arrays |= {f"x_{part}": signals[place[rows]], f"y_{part}": present[rows].astype(np.float32)}
        count = arrays["x_train"].size
        mean = float(sums[train].sum() / count)
        std = math.sqrt(float(squares[train].sum()) / count - mean**2)
        leads = self._pick_leads(arrays)
        d_input = arrays["x_train"].shape[2]
        info = DataInfo(
            "multilabel", d_input, len(classes), signals.shape[1], classes=classes, channels=leads,
            units=("mV",) * d_input, scale=((mean / GAIN,), (std / GAIN,)), sampling_rate=float(rate), skipped=skipped,
        )  # fmt: skip
        return split_set(f"ptbxl-{labels}", arrays, info, (1 / std, -mean / std))

    def _pick_leads(self, arrays: dict[str, np.ndarray]) -> tuple[str, ...]:
        """Reduce the signals x_… (records, length, 12) to the leads asked for, and return their names."""
        names = tuple(self.leads.upper().replace(" ", "").split(",")) if self.leads else LEADS
        if names == ("EACH",):
            x, y = arrays["x_train"], arrays["y_train"]
            arrays |= {f"x_{part}": arrays[f"x_{part}"][..., :1] for part in ("val", "test")}
            arrays["x_train"] = x.transpose(0, 2, 1).reshape(-1, x.shape[1], 1)
            arrays["y_train"] = y.repeat(len(LEADS), axis=0)
            return ()
        for name in set(names) - {*LEADS}:
            raise unknown_name("lead", name, (*LEADS, "each"))
        if names != LEADS:
            columns = [LEADS.index(name) for name in names]
            arrays |= {f"x_{part}": arrays[f"x_{part}"][..., columns] for part in FOLDS}
        return names


def read_database(folder: Path) -> pd.DataFrame:
    """Return ptbxl_database.csv with ecg_id, scp_codes (dict), strat_fold, filename_lr, filename_hr."""
    path = folder / "ptbxl_database.csv"
    table = read_table(path)
    columns = ["ecg_id", "scp_codes", "strat_fold", "filename_lr", "filename_hr"]
    need_columns(table, columns, path)
    table = table[columns].copy()
    codes = []
    for line, text in enumerate(table["scp_codes"], start=2):
        try:
            codes.append(dict(ast.literal_eval(text)))
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as reason:
            raise DataError(f"{path}: scp_codes in line {line} is {text!r}, expected a dict; restore it.") from reason
    table["scp_codes"] = codes
    return table


def read_labels(folder: Path, table: pd.DataFrame, labels: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return labels (records, classes) bool, and the classes in alphabetical order."""
    path = folder / "scp_statements.csv"
    statements = read_table(path, index=True)
    need_columns(statements, ["diagnostic", "form", "rhythm", "diagnostic_class", "diagnostic_subclass"], path)
    flag = {"all": None, "form": "form", "rhythm": "rhythm"}.get(labels, "diagnostic")
    chosen = statements if flag is None else statements[statements[flag] == 1]
    title = {"super-diag": "diagnostic_class", "sub-diag": "diagnostic_subclass"}.get(labels)
    meaning = {code: chosen.at[code, title] if title else code for code in chosen.index}
    found = [{meaning[code] for code in codes if code in meaning} for codes in table["scp_codes"]]
    classes = tuple(sorted(set().union(*found)))
    return np.array([[name in names for name in classes] for names in found]), classes


def _read(folder: Path, name: str, rate: int) -> np.ndarray:
    """Samples (length, 12) int16 of a record, much faster than by wfdb: headers have the same words in all records, and
    for each lead the first value and the sum modulo 65,536."""
    path = inside(folder / name, [folder])
    try:
        first, *lines = [line.split() for line in Path(f"{path}.hea").read_text().splitlines()] or [[]]
        length, said = int(first[3]), [[int(line[column]) for line in lines] for column in (5, 6)]
        data = Path(f"{path}.dat").read_bytes()
    except (OSError, ValueError, IndexError) as reason:
        raise DataError(f"{path}: header or signals are missing or unreadable ({reason}).") from reason
    words = [f"{path.name}.dat", "16", "1000.0(0)/mV", "16", "0"]  # file, format, gain, resolution, zero
    if first[1:3] != ["12", str(rate)] or [[*line[:5], *line[8:]] for line in lines] != [[*words, x] for x in LEADS]:
        raise DataError(f"{path}.hea: not 12 leads at {rate} Hz in WFDB format 16 with 1000/mV, as published.")
    values = np.frombuffer(data[: len(data) // 24 * 24], "<i2").reshape(-1, 12)
    if len(data) != 24 * length or not data:
        raise DataError(f"{path}.dat: {len(values)} samples, expected {length} by its header: truncated or damaged.")
    if ((np.stack([values[0], values.sum(axis=0, dtype=np.int64)]) - said) % 65536).any():
        raise DataError(f"{path}.dat: first values or checksums are not those of its header: damaged.")
    if (gaps := np.argwhere(values == MISSING)).size:
        raise DataError(f"{path}: NaN in lead {LEADS[gaps[0][1]]}, sample {gaps[0][0]} ({len(gaps)} in all).")
    return values


def _read_all(folder: Path, names: list[str], rate: int) -> Prepared:
    """All sound records as one array: signals, sums and squares of each record."""
    records, bad = read_each(names, lambda name: _read(folder, name, rate), "PTB-XL")
    shape = next(iter(records.values())).shape
    for name in [name for name, values in records.items() if values.shape != shape]:
        bad[name] = f"{name}: shape {records.pop(name).shape}, the files before it have {shape}."
    signals = np.stack(list(records.values()))
    sums, squares = sums_of(signals)
    return Prepared({"signals": signals, "sums": sums, "squares": squares}, {"bad": bad})


_PAPER = Recipe(
    {"d_model": 256, "n_layers": 6, "norm": "batch", "dropout": 0.1, "bidirectional": True},
    {"lr": 0.01, "weight_decay": 0.05, "batch_size": 16, "epochs": 100, "precision": "tf32"},
)
_WHOLE = _PAPER.change(
    "batch 64, 8 epochs, one cycle to 5e-3, dropout 0.05; not batch 16, 100 epochs, cosine from 1e-2, 0.1",
    {"dropout": 0.05}, lr=5e-3, batch_size=64, epochs=8, schedule="one-cycle", warmup=0.3,
)  # fmt: skip
_LONGER = _WHOLE.change(
    "whole records, batch 64, 24 epochs, one cycle to 5e-3, dropout 0.2; not batch 16, 100 epochs, cosine from 1e-2, "
    "0.1",
    {"dropout": 0.2}, epochs=24,
)  # fmt: skip
_CROPS = _WHOLE.change(
    "stretches of 2.5 s, batch 64, 32 epochs (form: 64), one cycle to 5e-3, dropout 0.2; not whole records, batch 16, "
    "100 epochs, cosine from 1e-2, 0.1",
    {"dropout": 0.2}, crop=2.5, epochs=32,
)  # fmt: skip
_MANY = {"paper": _PAPER, "whole": _WHOLE, "best": _CROPS}
_RECIPES = {
    "super-diag": {"paper": _PAPER, "crops": _CROPS, "best": _WHOLE},
    "form": {**_MANY, "best": _CROPS.change(_CROPS.note, epochs=64)},
    "rhythm": {"paper": _PAPER, "whole": _WHOLE, "crops": _CROPS, "best": _LONGER},
}
TASKS = tuple(
    Task(f"ptbxl-{name}", PtbxlOptions(labels=name), _RECIPES.get(name, _MANY), "root", fixed=("labels",))
    for name in LABELS
)


def _published(rate: Literal[100, 500]) -> Published:
    archive = "ptb-xl-a-large-publicly-available-electrocardiography-dataset-1.0.3"
    return Published(
        "CC BY 4.0", HOMEPAGE, PtbxlOptions(labels="all", sampling_rate=rate), (17_418, 2_183, 2_198), place="ptbxl",
        url=f"https://physionet.org/static/published-projects/ptb-xl/{archive}.zip", inside=archive,
        remark="`wavessm data check ptbxl` compares every record with the sums in its header",
    )  # fmt: skip


PUBLISHED = {"ptbxl": _published(100), "ptbxl-500": _published(500)}
