"""CSV tables: reading, and one clear line for what is wrong in them. Every loader of tables goes through here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from wavessm.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd


def import_pandas() -> None:
    """Raise `MissingExtraError` where pandas is not installed."""
    try:
        import pandas  # noqa: F401
    except ImportError as reason:
        raise MissingExtraError("CSV tables need pandas; install it with pip install 'wavessm[train]'.") from reason


def read_table(path: Path, index: bool = False) -> pd.DataFrame:
    """A CSV file; with `index` its first column names the rows."""
    import_pandas()
    import pandas as pd

    try:
        return pd.read_csv(path, index_col=0 if index else None, low_memory=False)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file.") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError, OSError) as reason:
        raise DataError(f"{path}: not a readable CSV table ({' '.join(str(reason).split())}).") from reason


def need_columns(table: pd.DataFrame, columns: Iterable[str], path: Path) -> None:
    """Raise `DataError` naming the first missing column and those that are there."""
    there = [str(name) for name in table.columns]
    for name in columns:
        if name not in table.columns:
            listed = ", ".join(there[:12]) + (", …" if len(there) > 12 else "")
            raise DataError(f"{path}: column {name!r} is missing; the file has {listed}.")


def numbers(table: pd.DataFrame, columns: list[str], path: Path) -> np.ndarray:
    """The columns as float64 (rows, columns); text and NaN are refused with column and line."""
    import pandas as pd

    result = np.empty((len(table), len(columns)), np.float64)
    for i, name in enumerate(columns):
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(np.float64)
        if (gaps := np.flatnonzero(~np.isfinite(values))).size:
            raw = table[name].iloc[gaps[0]]
            what = repr(raw) if isinstance(raw, str) else "NaN" if np.isnan(raw) else str(raw)
            raise DataError(f"{path}: {what} in column {name!r}, line {gaps[0] + 2} ({gaps.size} in all); "
                            f"expected numbers, fill or drop these rows.")  # fmt: skip
        result[:, i] = values
    return result
