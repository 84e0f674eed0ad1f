"""Stage 9c, for both estimators: columns go by their names, numbers are such as float32 holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wavessm.data.tables import LARGEST
from wavessm.errors import DataError

SHOWN = 8
"""Names in a message."""


def places(names: Sequence, wanted: Sequence, what: str) -> list[int]:
    """Where a table has the wanted columns, in whatever order it has them.

    >>> places(["v", "u"], ["u", "v"], "X")
    [1, 0]
    """
    names, wanted = list(names), list(wanted)
    if names == wanted:
        return list(range(len(names)))
    if len(set(names)) != len(names) or len(names) != len(wanted) or set(names) != set(wanted):
        raise DataError(
            f"{what}: the columns are {_some(names)}, expected {_some(wanted)} in any order; rename or choose them."
        )
    return [names.index(name) for name in wanted]


def _some(names: list) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (f", … ({len(names)} in all)" if len(names) > SHOWN else "")


def first_unfit(array: np.ndarray) -> tuple[int, float] | None:
    """Row and value of the first number that is NaN, infinite or beyond float32.

    >>> first_unfit(np.array([1.0, 1e39]))
    (1, 1e+39)
    """
    unfit = ~(np.abs(array) <= LARGEST)
    if not unfit.any():
        return None
    at = tuple(np.argwhere(unfit)[0])
    return int(at[0]), float(array[at])
