"""The studies and figures of the paper, drawn by `wavessm figures`."""

from typing import Any

from wavessm.frames import Array
from wavessm.inspection.drawing import LABELS


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
