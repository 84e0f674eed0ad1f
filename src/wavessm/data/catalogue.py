"""Published sets under a folder: which are there, whether they are whole, where to get them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from wavessm.data.catalogue_arena import KNOWN
from wavessm.data.datasets import forecast, ptbxl
from wavessm.data.fetch import OFFICIAL
from wavessm.data.tables import read_table
from wavessm.data.wfdb_files import check_samples, read_header, read_samples
from wavessm.errors import DataError, unknown_name

# Counts and checksums of the files as published; those of ETT are also what other libraries pin.
_ROWS = {"ETTh1": 17_420, "ETTh2": 17_420, "ETTm1": 69_680, "WTH": 35_064, "ECL": 26_304}
_MD5 = {
    "ETTh1.csv": "8381763947c85f4be6ac456c508460d6",
    "ETTh2.csv": "51a229a3fc13579dd939364fefe9c7ab",
    "ETTm1.csv": "82d6bd89109c63d075d99c1077b33f38",
}
_RECORDS = {21_799: "1.0.3", 21_837: "1.0.1"}
_CLASSES = {"all": 71, "diag": 44, "sub-diag": 23, "super-diag": 5, "form": 19, "rhythm": 12}
# training, validation and test records; the three diagnostic tasks have the same
_SIZES = {
    "1.0.3": {
        "all": (17_418, 2_183, 2_198),
        "diag": (17_084, 2_146, 2_158),
        "form": (7_197, 901, 880),
        "rhythm": (16_832, 2_100, 2_098),
    },
    "1.0.1": {
        "all": (17_441, 2_193, 2_203),
        "diag": (17_111, 2_156, 2_163),
        "form": (7_202, 904, 882),
        "rhythm": (16_854, 2_109, 2_103),
    },
}


class Row(NamedTuple):
    """One line of `list_sets`."""

    name: str
    present: bool
    size: int  # bytes on disk
    licence: str
    published: str


class Finding(NamedTuple):
    """One line of `check_set`: level is "ok", "note" or "problem"."""

    level: str
    text: str


@dataclasses.dataclass(frozen=True)
class Entry:
    """A published set: where it would be, and how to check it."""

    licence: str
    published: str
    find: Callable[[Path], list[Path]]  # its files and folders; raises DataError where one is missing
    check: Callable[[Path], list[Finding]]


def list_sets(root: str | Path) -> list[Row]:
    """Every set the loaders know, whether it is under `root`, its size and where it is published."""
    rows = []
    for name, entry in ENTRIES.items():
        try:
            files = entry.find(Path(root))
        except DataError:
            files = []
        rows.append(Row(name, bool(files), sum(map(_size, files)), entry.licence, entry.published))
    return rows


def check_set(root: str | Path, name: str) -> list[Finding]:
    """What is right and wrong with a set under `root`: files, counts, checksums; one line each."""
    if name not in ENTRIES:
        raise unknown_name("data set", name, ENTRIES)
    try:
        ENTRIES[name].find(Path(root))
        return ENTRIES[name].check(Path(root))
    except DataError as reason:
        return [Finding("problem", str(reason))]


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())


def _expect(what: str, found: object, expected: object) -> Finding:
    if found == expected:
        return Finding("ok", f"{what}: {found}")
    return Finding("problem", f"{what}: {found}, expected {expected}")


def _series_entry(name: str) -> Entry:
    known = forecast.SETS[name]

    def find(root: Path) -> list[Path]:
        return [forecast.find_series(root, name, multivariate=False)[0]]

    def check(root: Path) -> list[Finding]:
        path, target = forecast.find_series(root, name, multivariate=False)
        data = forecast.load_forecast(root, name, horizon=min(known.lengths))
        columns = [str(column) for column in read_table(path).columns if column != "date"]
        findings = [
            Finding("ok", f"{path}: readable, dates rise, no NaN in column {target}"),
            _expect("rows", len(data.train.series), _ROWS[name]),  # type: ignore[attr-defined]
            _expect("seconds between rows", data.info.step, 900.0 if name == "ETTm1" else 3600.0),
        ]
        if path.name in known.files:
            findings.append(_expect("columns beside the date", len(columns), known.columns))
        else:
            findings.append(
                Finding("note", f"{path.name} has the target only; {known.files[0]} is needed for all columns")
            )
        if path.name in _MD5:
            findings.append(_expect("MD5", _digest(path, "md5"), _MD5[path.name]))
        return findings

    licence = "CC BY-ND 4.0" if name.startswith("ETT") else "see the publisher"
    return Entry(licence, known.published, find, check)


def _digest(path: Path, algorithm: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _ptbxl_entry(rate: int) -> Entry:
    def find(root: Path) -> list[Path]:
        folder = ptbxl.find_ptbxl(root)
        files = [folder / name for name in ("ptbxl_database.csv", "scp_statements.csv", f"records{rate}")]
        for path in files:
            if not path.exists():
                raise DataError(f"PTB-XL: {path} is missing; it is published at {ptbxl.PUBLISHED}.")
        return files

    return Entry("CC BY 4.0", ptbxl.PUBLISHED, find, lambda root: _check_ptbxl(ptbxl.find_ptbxl(root), rate))


def _check_ptbxl(folder: Path, rate: int) -> list[Finding]:
    table = ptbxl.read_database(folder)
    names = table[f"filename_{ptbxl.SUFFIX[rate]}"]
    version = _RECORDS.get(len(table))
    findings = [
        Finding("ok", f"{len(table):,} records listed, as in version {version}")
        if version
        else Finding("problem", f"{len(table):,} records listed, expected {' or '.join(f'{n:,}' for n in _RECORDS)}")
    ]
    if version is not None:
        for task, classes in _CLASSES.items():
            sizes = _SIZES[version]["diag" if task.endswith("diag") else task]
            labels, found = ptbxl.task_labels(folder, table, task)
            kept = table["strat_fold"][labels.any(axis=1)]
            parts = [int(kept.isin(list(folds)).sum()) for folds in ptbxl.FOLDS.values()]
            findings.append(
                _expect(f"task {task}, classes and records per part", (len(found), *parts), (classes, *sizes))
            )
    bad = []
    for name in names:
        path = str(folder / name)
        try:
            header = read_header(path)
            if not header.plain or header.rate != rate or len(header.leads) != len(ptbxl.LEADS):
                raise DataError(f"{path}.hea: not 12 leads at {rate} Hz in one file of format 16.")
            check_samples(path, header, read_samples(path, header))
        except DataError as reason:
            bad.append(str(reason))
    findings += [Finding("problem", text) for text in bad[:20]]
    if len(bad) > 20:
        findings.append(Finding("problem", f"… and {len(bad) - 20:,} more bad records"))
    if not bad:
        findings.append(Finding("ok", f"{len(names):,} records at {rate} Hz: sizes, first values and checksums"))
    return findings + _check_sums(folder, names.tolist())


def _check_sums(folder: Path, names: list[str]) -> list[Finding]:
    """Against SHA256SUMS.txt, which PhysioNet puts into a release."""
    path = folder / "SHA256SUMS.txt"
    if not path.is_file():
        return [Finding("note", f"no {path.name} in {folder}: checksums of the release not compared")]
    listed = {name: digest for digest, name in (line.split(maxsplit=1) for line in path.read_text().splitlines())}
    files = [
        "ptbxl_database.csv",
        "scp_statements.csv",
        *(name + suffix for name in names for suffix in (".hea", ".dat")),
    ]
    there = [name for name in files if name in listed and (folder / name).is_file()]
    wrong = [name for name in there if _digest(folder / name, "sha256") != listed[name]]
    if wrong:
        return [Finding("problem", f"{name}: SHA-256 differs from {path.name}") for name in wrong[:20]]
    return [Finding("ok", f"SHA-256 of {len(there):,} files as in {path.name}")]


def _known_entry(name: str) -> Entry:
    known = KNOWN[name]

    def check(root: Path) -> list[Finding]:
        data = known.load(root)
        cases = (len(data.train), len(data.val), len(data.test))
        findings = [Finding("problem", f"{file} cannot be read") for file in data.info.skipped[:20]]
        findings.append(_expect("training, validation and test cases", cases, known.sizes))
        if known.symbols:
            findings.append(_expect("symbols", len(data.info.symbols), known.symbols))
        return findings

    return Entry(OFFICIAL[name].licence, OFFICIAL[name].page, known.find, check)


ENTRIES = {
    "ptbxl": _ptbxl_entry(100),
    "ptbxl-500": _ptbxl_entry(500),
    **{name: _series_entry(name) for name in forecast.SETS},
    **{name: _known_entry(name) for name in KNOWN},
}
