"""The studies and figures of the paper, drawn by `wavessm figures`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from wavessm.frames import Array

LABELS = {
    "morlet": "Morlet", "gauss": "Gauss", "mexhat": "Mexican hat", "dpss": "DPSS", "db6": "db6",
    "legendre": "Legendre", "fourier": "Fourier",
}  # fmt: skip
"""The paper's five families in its order, then the two baselines."""

COLOURS = {
    "morlet": "#1f6fb4", "gauss": "#e07b00", "mexhat": "#2a9d3c", "dpss": "#8b5fbf", "db6": "#00a3a3",
    "legendre": "#c8102e", "fourier": "#5b5b5b",
}  # fmt: skip


def table_rows(columns: dict[str, Array], **labels: Any) -> list[dict[str, Any]]:
    """Columns of equal length as the rows of a table, each with the labels before it.

    >>> import numpy as np
    >>> table_rows({"x": np.arange(2)}, family="db6")
    [{'family': 'db6', 'x': 0.0}, {'family': 'db6', 'x': 1.0}]
    """
    values = zip(*columns.values(), strict=True)
    return [{**labels, **dict(zip(columns, map(float, row), strict=True))} for row in values]


def by_family(values: dict[str, float], form: str = ".2f") -> str:
    """Numbers with the names of their families, for captions.

    >>> by_family({"morlet": 0.1, "db6": 0.25})
    'Morlet 0.10, db6 0.25'
    """
    return ", ".join(f"{LABELS[family]} {value:{form}}" for family, value in values.items())


def fitted_slope(x: Any, y: Any) -> float:
    """The exponent p of y ∝ xᵖ by least squares on logarithms.

    >>> round(fitted_slope([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def wide_rows(matrix: np.ndarray, prefix: str, **labels: Any) -> Iterator[dict[str, Any]]:
    """A matrix as rows of a table: the labels, the row's number, then its entries as prefix0, prefix1, …"""
    for index, values in enumerate(matrix):
        yield {**labels, "row": index, **{f"{prefix}{k}": float(value) for k, value in enumerate(values)}}
