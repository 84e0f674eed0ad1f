"""Small copies of the published layouts, in their file formats, drawn from a seed. Tests of data and training use them.

Each function writes below `folder` and returns it (or the file). Signals carry something to learn: a class has its own
frequency, a series has a daily cycle.
"""

from __future__ import annotations

import functools
import pickle
import wave
from csv import DictReader
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image

from wavessm.data import load
from wavessm.training import Trainer, checkpoint

LEADS = ("I", "II", "III", "AVR", "AVL", "AVF", "V1", "V2", "V3", "V4", "V5", "V6")
SUPERCLASSES = ("CD", "HYP", "MI", "NORM", "STTC")
# code: diagnostic, form, rhythm, superclass, subclass; codes and classes of the release
STATEMENTS = {
    "NORM": (1, 0, 0, "NORM", "NORM"),
    "IMI": (1, 0, 0, "MI", "IMI"),
    "ASMI": (1, 0, 0, "MI", "AMI"),
    "NDT": (1, 1, 0, "STTC", "STTC"),
    "LVH": (1, 0, 0, "HYP", "LVH"),
    "CLBBB": (1, 0, 0, "CD", "CLBBB"),
    "ABQRS": (0, 1, 0, "", ""),
    "PVC": (0, 1, 0, "", ""),
    "SR": (0, 0, 1, "", ""),
    "AFIB": (0, 0, 1, "", ""),
}
COLUMNS = {
    "ETTh1": ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"),
    "WTH": (
        "Visibility", "DryBulbFarenheit", "DryBulbCelsius", "WetBulbFarenheit", "DewPointFarenheit", "DewPointCelsius",
        "RelativeHumidity", "WindSpeed", "WindDirection", "StationPressure", "Altimeter", "WetBulbCelsius",
    ),
    "ECL": tuple(f"MT_{i:03d}" for i in range(321)),
}  # fmt: skip
COLUMNS["ETTh2"] = COLUMNS["ETTm1"] = COLUMNS["ETTh1"]

_LATER = ["backward", "follow", "forward", "learn", "visual"]
_FIRST = [
    "bed", "bird", "cat", "dog", "down", "eight", "five", "four", "go", "happy", "house", "left", "marvin", "nine",
    "no", "off", "on", "one", "right", "seven", "sheila", "six", "stop", "three", "tree", "two", "up", "wow", "yes",
    "zero",
]  # fmt: skip
WORDS = {30: _FIRST, 35: sorted(_FIRST + _LATER)}


def write_record(path: Path, values: np.ndarray, rate: int, names: tuple[str, ...] = LEADS) -> None:
    """A WFDB record in format 16: path.hea and path.dat. values: (samples, leads) integers in microvolts."""
    values = values.astype("<i2")
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{path.name} {values.shape[1]} {rate} {values.shape[0]}"]
    for lead, name in zip(values.T, names, strict=False):
        checksum = int(lead.astype(np.int64).sum()) % 65536
        lines.append(f"{path.name}.dat 16 1000.0(0)/mV 16 0 {lead[0]} {checksum} 0 {name}")
    path.with_name(path.name + ".hea").write_text("\n".join(lines) + "\n")
    path.with_name(path.name + ".dat").write_bytes(values.tobytes())


def oscillation(rng: np.random.Generator, samples: int, channels: int, cycles: float) -> np.ndarray:
    """A noisy oscillation (samples, channels) with a random phase."""
    t = np.arange(samples)[:, None] / samples
    phase = rng.uniform(0, 2 * np.pi, (1, channels))
    return np.sin(2 * np.pi * cycles * t + phase) + 0.3 * rng.standard_normal((samples, channels))


def ptbxl(folder: Path, records: int = 60, rates: tuple[int, ...] = (100,), seconds: int = 10, seed: int = 0) -> Path:
    """PTB-XL: ptbxl_database.csv, scp_statements.csv, records100 (and records500). Folds 1 to 10 by turns."""
    folder, rng = Path(folder), np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    codes = list(STATEMENTS)
    diagnostic, form, rhythm = codes[:6], ["NDT", "ABQRS", "PVC"], ["SR", "AFIB"]
    rows = []
    for i in range(records):
        turn = i // 10  # one round of the ten folds has the same labels, so that every class is in every part
        number = i * 367 % 21_000 + 1 if i else 1  # several thousands, as in the release
        main = diagnostic[turn % len(diagnostic)]
        labels = {main: 100.0, form[turn % 3]: 0.0, rhythm[turn % 2]: 0.0}
        if i % 7 == 3 and i > 20:
            labels = {"SR": 0.0}  # no diagnostic and no form label
        row = {"ecg_id": number, "patient_id": 15_000.0 + i, "scp_codes": repr(labels), "strat_fold": i % 10 + 1}
        for rate, key in ((100, "lr"), (500, "hr")):
            name = f"records{rate}/{number // 1000 * 1000:05d}/{number:05d}_{key}"
            row[f"filename_{key}"] = name
            if rate in rates:
                signal = oscillation(rng, seconds * rate, 12, 4.0 * (1 + diagnostic.index(main)))
                write_record(folder / name, np.round(300 * signal), rate)
        rows.append(row)
    pd.DataFrame(rows).to_csv(folder / "ptbxl_database.csv", index=False)
    statements = pd.DataFrame(
        [
            (
                code,
                f"about {code}",
                *(1.0 if flag else np.nan for flag in flags[:3]),
                *(name or np.nan for name in flags[3:]),
            )
            for code, flags in STATEMENTS.items()
        ],
        columns=["", "description", "diagnostic", "form", "rhythm", "diagnostic_class", "diagnostic_subclass"],
    )
    statements.to_csv(folder / "scp_statements.csv", index=False)
    return folder


def series(rows: int, columns: int, day: int, seed: int = 0) -> np.ndarray:
    """A daily cycle, a slow drift and noise, (rows, columns)."""
    rng = np.random.default_rng(seed)
    t = np.arange(rows)[:, None]
    level = 10 + np.arange(columns) + np.cumsum(0.02 * rng.standard_normal((rows, columns)), axis=0)
    return level + np.sin(2 * np.pi * t / day + np.arange(columns)) + 0.1 * rng.standard_normal((rows, columns))


def forecast(folder: Path, name: str = "ETTh1", rows: int | None = None, columns: int | None = None) -> Path:
    """One of Informer's files. ETT has fixed calendar splits, so its miniature needs the rows they name."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    per_hour = 4 if name == "ETTm1" else 1
    rows = rows or {"WTH": 2000, "ECL": 2600}.get(name, 14_400 * per_hour)
    names = COLUMNS[name] if columns is None else COLUMNS[name][-columns:]
    start = "2010-01-01" if name == "WTH" else "2016-07-01"
    dates = pd.date_range(start, periods=rows, freq="15min" if per_hour == 4 else "h")
    if name == "WTH":
        text = [f"{d.month}/{d.day}/{d.year} {d.hour}:{d.minute:02d}" for d in dates]
    else:
        text = dates.strftime("%Y-%m-%d %H:%M:%S").tolist()
    table = pd.DataFrame(series(rows, len(names), 24 * per_hour).round(3), columns=list(names))
    table.insert(0, "date", text)
    path = folder / f"{name}.csv"
    table.to_csv(path, index=False)
    return path


def arrays(folder: Path, cases: int = 60, length: int = 64, channels: int = 2, classes: int = 3, seed: int = 0) -> Path:
    """X.npy (cases, length, channels) and y.npy (cases,): the class is the frequency."""
    folder, rng = Path(folder), np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    y = np.arange(cases) % classes
    X = np.stack([oscillation(rng, length, channels, 2.0 + 3.0 * label) for label in y])
    np.save(folder / "X.npy", X.astype(np.float32))
    np.save(folder / "y.npy", y)
    return folder


def save(folder: Path, **arrays: np.ndarray) -> Path:
    """X.npy, y.npy, … of the given arrays."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values)
    return folder


def table(text: str) -> list[dict[str, str]]:
    """The rows of a CSV as text."""
    return list(DictReader(StringIO(text)))


def csv(path: Path, rows: int = 600, columns: tuple[str, ...] = ("load", "wind")) -> Path:
    """Hourly rows with a date column."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(series(rows, len(columns), 24).round(4), columns=list(columns))
    table.insert(0, "date", pd.date_range("2024-01-01", periods=rows, freq="h").strftime("%Y-%m-%d %H:%M:%S"))
    table.to_csv(path, index=False)
    return path


def write_wav(path: Path, values: np.ndarray, rate: int = 8000) -> Path:
    """16-bit PCM. values: (samples,) or (samples, channels) in [-1, 1]."""
    values = values if values.ndim == 2 else values[:, None]
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((values.shape[1], 2, rate, len(values), "NONE", ""))
        file.writeframes((np.clip(values, -1, 1) * 32767).astype("<i2").tobytes())
    return path


def wav_folder(folder: Path, per_class: int = 12, samples: int = 200, rate: int = 8000, seed: int = 0) -> Path:
    """folder/<class>/<n>.wav, clips of slightly different lengths."""
    folder, rng = Path(folder), np.random.default_rng(seed)
    for k, word in enumerate(("hum", "buzz", "beep")):
        for i in range(per_class):
            length = samples - int(rng.integers(0, samples // 4)) * (i % 2)
            write_wav(folder / word / f"{i:03d}.wav", 0.3 * oscillation(rng, length, 1, 5.0 * (k + 1)), rate)
    return folder


def wfdb_folder(folder: Path, records: int = 30, samples: int = 200, rate: int = 100, seed: int = 0) -> Path:
    """Two-lead records and labels.csv with the columns record, label."""
    folder, rng = Path(folder), np.random.default_rng(seed)
    labels = [("normal", "paced")[i % 2] for i in range(records)]
    for i, label in enumerate(labels):
        signal = oscillation(rng, samples, 2, 3.0 if label == "normal" else 9.0)
        write_record(folder / f"rec{i:03d}", np.round(500 * signal), rate, ("MLII", "V1"))
    table = pd.DataFrame({"record": [f"rec{i:03d}" for i in range(records)], "label": labels})
    table.to_csv(folder / "labels.csv", index=False)
    return folder


# -- Speech Commands and the Long Range Arena -----------------------------------------------------------------------


def speech(folder: Path, words: int = 35, per_part: int = 1, seed: int = 0) -> Path:
    """Speech Commands: word folders and the two lists; one clip of each word a part, some shorter than a second."""
    names = WORDS[words]
    folder, rng = Path(folder) / f"speech_commands_v0.0{2 if words == 35 else 1}", np.random.default_rng(seed)
    lists: dict[str, list[str]] = {"validation": [], "testing": [], "training": []}
    for k, word in enumerate(names):
        for part, listed in lists.items():
            for i in range(per_part):
                length = 16_000 if (k + i) % 4 else 9_000 + 100 * k
                name = f"{word}/{part}{i}_nohash_0.wav"
                values = 0.1 * oscillation(rng, length, 1, 20.0 + 40.0 * k)
                write_wav(folder / name, values, 16_000)
                listed.append(name)
    write_wav(folder / "_background_noise_" / "hiss.wav", np.zeros(20_000), 16_000)
    for part in ("validation", "testing"):
        (folder / f"{part}_list.txt").write_text("\n".join(lists[part]) + "\n")
    return folder.parent


def aclimdb(folder: Path, per_cell: int = 12, seed: int = 0) -> Path:
    """aclImdb/{train,test}/{pos,neg}/<id>_<rating>.txt: good reviews praise."""
    folder, rng = Path(folder), np.random.default_rng(seed)
    words = {"pos": ["good", "fine", "great"], "neg": ["bad", "dull", "poor"]}
    for part in ("train", "test"):
        for label, own in words.items():
            (folder / "aclImdb" / part / label).mkdir(parents=True, exist_ok=True)
            for i in range(per_cell):
                chosen = rng.choice([*own, "a", "film", "the<br />", "café"], size=8 + i % 5)
                path = folder / "aclImdb" / part / label / f"{i}_{8 if label == 'pos' else 2}.txt"
                path.write_text(" ".join(chosen), encoding="utf-8")
    return folder


def aan(folder: Path, pairs: int = 16, seed: int = 0) -> Path:
    """tsv_data/new_aan_pairs.{train,eval,test}.tsv: papers that belong together share their letters."""
    folder, rng = Path(folder) / "tsv_data", np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "eval", "test"):
        lines = []
        for i in range(pairs):
            kinds = ["abc ", "xyz "]
            label, first = i % 2, int(rng.integers(2))
            texts = ["".join(rng.choice(list(kinds[k]), size=20 + i)) for k in (first, first if label else 1 - first)]
            lines.append(f'{label}.0\tP{i:02d}\tQ{i:02d}\t{texts[0]}"\t{texts[1]}\n')
        (folder / f"new_aan_pairs.{part}.tsv").write_text("".join(lines))
    return folder.parent


def cifar(folder: Path, per_batch: int = 12, seed: int = 0) -> Path:
    """CIFAR-10's five training files and its test file: the class is the brightness."""
    place, rng = Path(folder) / "cifar-10-batches-py", np.random.default_rng(seed)
    place.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels = np.arange(per_batch) % 10
        pixels = (20 * labels[:, None] + rng.integers(0, 60, (per_batch, 3072))).astype(np.uint8)
        batch = {b"batch_label": name.encode(), b"labels": labels.tolist(), b"data": pixels}
        (place / name).write_bytes(pickle.dumps(batch, protocol=2))
    return Path(folder)


def pathfinder(folder: Path, size: int = 32, batches: int = 2, per_batch: int = 15, seed: int = 0) -> Path:
    """The release's layout with pictures of a single bright line, whole or broken."""
    place = Path(folder) / f"pathfinder{size}" / "curv_contour_length_14"
    rng = np.random.default_rng(seed)
    (place / "metadata").mkdir(parents=True)
    for batch in range(batches):
        (place / "imgs" / str(batch)).mkdir(parents=True)
        lines = []
        for i in range(per_batch):
            label, picture = i % 2, rng.integers(0, 40, (size, size), dtype=np.uint8)
            picture[int(rng.integers(size)), : size if label else size // 3] = 255
            Image.fromarray(picture).save(place / "imgs" / str(batch) / f"sample_{i}.png")
            lines.append(f"imgs/{batch} sample_{i}.png {i} {label} 1.0 14 4 2 0.5 1 1\n")
        (place / "metadata" / f"{batch}.npy").write_text("".join(lines))
    return Path(folder)


# -- loaders ----------------------------------------------------------------------------------------------------------


def load_ptbxl(root, labels="super-diag", sampling_rate=100, **options):
    return load(f"ptbxl-{labels}", root, sampling_rate=sampling_rate, **options)


def load_forecast(root, dataset="ETTh1", horizon=24, multivariate=False, context=None, **options):
    variables = "multi" if multivariate else "uni"
    return load("forecast", root, dataset=dataset, horizon=horizon, variables=variables, context=context, **options)


def load_csv(path, target=None, calendar="table", future_calendar=False, **options):
    return load("csv", path, target=target, calendar=calendar, future_calendar=future_calendar, **options)


def load_wfdb(folder, labels=None, **options):
    return load("wfdb", folder, labels=None if labels is None else str(labels), **options)


load_arrays, load_wav_folder, load_speech, load_listops, load_text, load_retrieval, load_image, load_pathfinder = (
    functools.partial(load, task)
    for task in ("arrays", "wav", "speech", "listops", "text", "retrieval", "image", "pathfinder")
)


# -- training that is cut short ---------------------------------------------------------------------------------------


def interrupt(monkeypatch, *steps, validations=(), error=KeyboardInterrupt):
    """Raise in the middle of these steps, and of the validations after so many steps, once each."""

    def breaking(original, left):
        def broken(self, *given):
            if self.step in left:
                left.remove(self.step)
                raise error
            return original(self, *given)

        return broken

    monkeypatch.setattr(Trainer, "work", breaking(Trainer.work, {*steps}))
    monkeypatch.setattr(Trainer, "score", breaking(Trainer.score, {*validations}))


def same_weights(*folders):
    """Whether the last weights of runs are equal, bit for bit."""
    one, *others = (checkpoint.load(Path(folder) / "last.ckpt")["model"] for folder in folders)
    return all(torch.equal(one[name], other[name]) for other in others for name in one)
