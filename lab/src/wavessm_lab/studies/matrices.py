"""The matrices A of the five families and of Legendre, under both measures, as pictures."""

from __future__ import annotations

from typing import Any

import numpy as np

from wavessm.inspection.drawing import Drawing, canvas
from wavessm.operators import MEASURES, make_operator
from wavessm_lab.studies import LABELS, wide_rows

FAMILIES = ("morlet", "gauss", "mexhat", "dpss", "db6", "legendre")


def transition_matrices(n: int = 40) -> Drawing:
    """A of the tight frames, each in units of its own largest entry, coloured by sign and the root of the size."""
    rows: list[dict[str, Any]] = []
    with canvas() as plt:
        figure, axes = plt.subplots(2, len(FAMILIES), figsize=(11, 4.1))
        for line, measure in zip(axes, MEASURES, strict=True):
            for axis, family in zip(line, FAMILIES, strict=True):
                A = make_operator(family, measure, n).A
                rows += wide_rows(A, "a", family=family, measure=measure)
                peak = np.abs(A).max()
                shown = np.sign(A) * np.sqrt(np.abs(A) / peak)
                image = axis.imshow(shown, cmap="RdBu_r", vmin=-1, vmax=1)
                axis.set(xticks=[], yticks=[], xlabel=f"largest |entry| {peak:.0f}")
                for side in axis.spines.values():
                    side.set_visible(True)
                    side.set_linewidth(0.5)
                if measure == "scaled":
                    axis.set_title(LABELS[family])
            line[0].set_ylabel(measure)
        bar = figure.colorbar(image, ax=axes, shrink=0.7, aspect=30, ticks=[-1, -0.5, 0, 0.5, 1])
        bar.ax.set_yticklabels(["−1", "−¼", "0", "¼", "1"])
        bar.set_label("entry / largest |entry|")
    caption = (
        f"A of the tight frames at N = {n}: atoms are ordered scale by scale, so neighbours in time and scale couple "
        "near the diagonals; scaled Legendre is lower triangular, every order fed by all lower ones."
    )
    return Drawing(figure, rows, caption)
