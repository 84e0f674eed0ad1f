"""CSV tables: reading, and one clear line for what is wrong in them. Every loader of tables goes through here."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wavessm.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

LARGEST = float(np.finfo(np.float32).max)
"""What models can take: they compute in float32."""


def import_pandas() -> None:
    """Raise `MissingExtraError` where pandas is not installed."""
    try:
        import pandas  # noqa: F401
    except ImportError as reason:
        raise MissingExtraError("CSV tables need pandas; install it with pip install 'wavessm[train]'.") from reason


def read_table(path: Path, index: bool = False, bare: bool = False, text: bool = False) -> pd.DataFrame:
    """A CSV file, its rows known by their line; with `index` its first column names them.

    A `bare` table has no line with names: its columns are "0", "1", …. With `text` fields stay as they are written
    (04015, None), and only empty ones are missing.
    """
    import_pandas()
    import pandas as pd

    try:
        header, lines = _outline(path, bare)
        names = list(map(str, range(len(header)))) if bare else None
        first = 0 if index else False
        as_written: dict[str, Any] = {"dtype": str, "keep_default_na": False, "na_values": [""]} if text else {}
        table = pd.read_csv(
            path, header=None if bare else 0, names=names, index_col=first, low_memory=False, **as_written
        )
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, csv.Error, UnicodeDecodeError, OSError) as reason:
        raise DataError(f"{path}: not a readable CSV table ({' '.join(str(reason).split())}).") from reason
    if len(table) != len(lines):
        raise DataError(f"{path}: not a readable CSV table (rows: {len(table)}, lines: {len(lines)}); mend its quotes.")
    if not index:
        table.index = pd.Index(lines)
    return table


def first_line(path: Path) -> list[str]:
    """The fields of the first line that is not blank."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return next((row for row in csv.reader(file) if not _blank(row)), [])
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (csv.Error, UnicodeDecodeError, OSError) as reason:
        raise DataError(f"{path}: not a readable CSV table ({' '.join(str(reason).split())}).") from reason


def is_number(text: str) -> bool:
    """Whether a field holds a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def counted(header: list[str]) -> bool:
    """Whether several columns are named 0, 1, 2, …, as pandas names them where nobody did."""
    return len(header) > 1 and header == [str(column) for column in range(len(header))]


def _outline(path: Path, bare: bool) -> tuple[list[str], list[int]]:
    """The first line of a table and the line at which every row begins; each must have as many fields as the first."""
    header: list[str] = []
    lines: list[int] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader, end = csv.reader(file), 0
        for row in reader:
            line, end = end + 1, reader.line_num
            if _blank(row):
                continue
            if not header:
                header = row
                _check_header(header, path, bare)
                if not bare:
                    continue
            if len(row) != len(header):
                why = "as in the first line" if bare else "one for each name of the header"
                raise DataError(f"{path}: fields in line {line}: {len(row)}, expected {len(header)}, {why}; separate "
                                "them by commas, write decimals with a point and end no line in a comma.")  # fmt: skip
            lines.append(line)
    if not header:
        raise DataError(f"{path}: not a readable CSV table (it is empty).")
    return header, lines


def _check_header(header: list[str], path: Path, bare: bool) -> None:
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise DataError(f"{path}: the first line is {header[0][:60]!r}; separate columns by commas, and write decimals "
                        "with a point.")  # fmt: skip
    if bare:
        return
    if all(map(is_number, header)) and not counted(header):
        raise DataError(f"{path}: has no line with names, the first is {','.join(header)[:60]!r}; write a name for "
                        "each column above it, or a letter before each of these.")  # fmt: skip
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path}: column {twice!r} is there {header.count(twice)} times; give each a name of its own.")


def _blank(row: list[str]) -> bool:
    return not row or (len(row) == 1 and not row[0].strip())


def need_columns(table: pd.DataFrame, columns: Iterable[str], path: Path) -> None:
    """Raise `DataError` naming the first missing column and those that are there."""
    there = [str(name) for name in table.columns]
    for name in columns:
        if name not in table.columns:
            listed = ", ".join(there[:12]) + (", …" if len(there) > 12 else "")
            raise DataError(f"{path}: column {name!r} is missing; the file has {listed}.")


def numbers(table: pd.DataFrame, columns: list[str], path: Path) -> np.ndarray:
    """The columns as float64 (rows, columns); text, NaN and what is beyond float32 are refused with column, line."""
    import pandas as pd

    result = np.empty((len(table), len(columns)), np.float64)
    for i, name in enumerate(columns):
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64)
        if (gaps := np.flatnonzero(~(np.abs(values) <= LARGEST))).size:
            raw, value = table[name].iloc[gaps[0]], values[gaps[0]]
            what = repr(raw) if isinstance(raw, str) else "NaN" if np.isnan(value) else f"{value:g}"
            size = f" up to {LARGEST:.2g}" if np.isfinite(value) else ""
            raise DataError(f"{path}: {what} in column {name!r}, line {table.index[gaps[0]]} ({gaps.size} in all); "
                            f"expected numbers{size}, fill or drop these rows.")  # fmt: skip
        result[:, i] = values
    return result
