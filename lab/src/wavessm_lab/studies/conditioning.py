"""How well frames are conditioned, raw and tight, and how well their operators diagonalise, against N.

    python -m wavessm_lab.studies.conditioning --out results/frames

Two ranges for the wavelet families: the default one, and eight scales from 1 to N/2 cycles, which conditions better
and remembers worse (`python -m wavessm_lab.studies.memory` has the other half of that trade).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from wavessm.frames import BASES, PAPER_FAMILIES, Frame, make_frame
from wavessm.operators import make_operator
from wavessm.training.record import provenance, pyplot, write_csv

SIZES = (8, 16, 32, 48, 64, 96, 128, 256)


def frame_for(family: str, n: int, span: str) -> Frame:
    """The family's frame with the default range, or with eight scales from 1 to n/2 cycles ("to n/2")."""
    return make_frame(family, n) if span == "default" else make_frame(family, n, scales=8, f_min=1.0, f_max=n / 2)


def ranges(family: str) -> tuple[str, ...]:
    """The ranges that a family can be built with."""
    return ("default",) if family in BASES else ("default", "to n/2")


def measure(family: str, n: int, span: str) -> dict[str, Any]:
    """Return the row of one frame: its condition numbers and those of its operators."""
    frame = frame_for(family, n, span)
    tight = frame.tighten()
    row: dict[str, Any] = {
        "family": family,
        "range": span,
        "n": n,
        "kappa_raw": frame.condition_number(),
        "kappa_tight": tight.condition_number(),
    }
    for name in ("scaled", "translated"):
        operator = make_operator(tight, name)
        row[f"residual_{name}"] = operator.identity_residual()
        row[f"eigenvectors_{name}"] = operator.to_diagonal(max_condition=float("inf")).condition_number
    row["boundary_energy"] = float(operator.B @ operator.B)
    return row


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw condition numbers over N."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.5))
    for index, family in enumerate((*PAPER_FAMILIES, "legendre", "fourier")):
        mine = [row for row in rows if row["family"] == family and row["range"] == "default"]
        sizes = [row["n"] for row in mine]
        axes[0].plot(sizes, [row["kappa_raw"] for row in mine], "--", color=f"C{index}", label=family)
        axes[0].plot(sizes, [row["kappa_tight"] for row in mine], color=f"C{index}")
        axes[1].plot(sizes, [row["eigenvectors_scaled"] for row in mine], color=f"C{index}", label=family)
    axes[0].set_title("κ(S) of the frame: raw (dashed) and tight")
    axes[1].set_title("condition number of the scaled operator's eigenvectors")
    for axis in axes:
        axis.set(xscale="log", yscale="log", xlabel="N")
        axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Write the table, the figure and PROVENANCE.md."""
    parser = argparse.ArgumentParser(description="Condition numbers of frames and operators against N.")
    parser.add_argument("--out", type=Path, default=Path("results/frames"))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    options = parser.parse_args(arguments)
    rows = []
    for family in (*PAPER_FAMILIES, *BASES):
        rows += [measure(family, n, span) for span in ranges(family) for n in options.sizes]
        print(f"{family}: done")
    write_csv(options.out / "conditioning.csv", rows)
    draw(rows, options.out / "conditioning.png")
    (options.out / "PROVENANCE.md").write_text(
        f"Made by {provenance('python -m wavessm_lab.studies.conditioning', arguments)}.\n"
    )


if __name__ == "__main__":
    main()
