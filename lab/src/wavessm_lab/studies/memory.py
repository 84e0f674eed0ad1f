"""How well each family remembers: stream a signal into N numbers, read it back, measure.

    python -m wavessm_lab.studies.memory --out results/memory

Scaled memories are asked for the whole signal; translated ones have a window of half its length and are asked for the
newer half, after all of it was processed. Errors are root mean squares in units of the signal's own (1 = no memory):
everywhere, around jumps (`signals.near_jumps`; nan where the stretch has none) and elsewhere. `projection` is the error
of the best reconstruction in the frame's span: what the online dynamics could at most reach. Two naive rows: the
signal's mean, and N block means.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wavessm.frames import BASES, PAPER_FAMILIES
from wavessm.memory import OnlineMemory
from wavessm.operators import MEASURES, make_operator
from wavessm.training.record import provenance, pyplot, write_csv
from wavessm_lab.studies.conditioning import frame_for, ranges
from wavessm_lab.studies.signals import StudySignal, classical, ecg

SIZES = (16, 32, 48, 64, 96, 128)


def errors(signal: StudySignal, reconstruction: np.ndarray) -> dict[str, float]:
    """Root mean square error everywhere, around jumps and elsewhere, of the last len(reconstruction) samples."""
    truth, abrupt = signal.values[-len(reconstruction) :], signal.abrupt[-len(reconstruction) :]
    squares = (reconstruction - truth) ** 2
    unit = np.sqrt(np.mean(truth**2))

    def rms(where: np.ndarray) -> float:
        return float(np.sqrt(np.mean(squares[where])) / unit) if where.any() else float("nan")

    return {"overall": rms(np.full(len(truth), True)), "jumps": rms(abrupt), "smooth": rms(~abrupt)}


def asked_for(signal: StudySignal, measure: str) -> np.ndarray:
    """Return the part of the signal that a memory must reconstruct."""
    return signal.values if measure == "scaled" else signal.values[len(signal.values) // 2 :]


def remember(family: str, span: str, measure: str, n: int, signals: list[StudySignal]) -> Iterator[dict[str, Any]]:
    """Rows for signals of one length, streamed as one batch."""
    operator = make_operator(frame_for(family, n, span).tighten(), measure)
    batch = np.stack([signal.values for signal in signals])
    length = len(asked_for(signals[0], measure))
    memory = OnlineMemory(operator, window=None if measure == "scaled" else length)
    memory.push(batch)
    recalled = memory.reconstruct(memory.state, grid=length).numpy()
    # least squares on the sample points, so that nothing in the span could do better there
    atoms = operator.frame.evaluate((np.arange(length) + 0.5) / length)
    for signal, values in zip(signals, recalled, strict=True):
        truth = asked_for(signal, measure)
        best = atoms.T @ np.linalg.lstsq(atoms.T, truth, rcond=None)[0]
        yield {
            "signal": signal.name,
            "measure": measure,
            "family": family,
            "range": span,
            "n": n,
            **errors(signal, values),
            "projection": errors(signal, best)["overall"],
        }


def naive(signal: StudySignal, measure: str, n: int) -> Iterator[dict[str, Any]]:
    """Rows of the two naive memories: the mean, and n block means."""
    truth = asked_for(signal, measure)
    blocks = np.concatenate([np.full(len(part), part.mean()) for part in np.array_split(truth, n)])
    for family, values in (("(mean)", np.full(len(truth), truth.mean())), ("(block means)", blocks)):
        row = {"signal": signal.name, "measure": measure, "family": family, "range": "", "n": n}
        yield {**row, **errors(signal, values), "projection": float("nan")}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw errors over N, a panel for each signal and measure."""
    plt = pyplot()
    names = list(dict.fromkeys(row["signal"] for row in rows))
    figure, axes = plt.subplots(2, len(names), figsize=(2.6 * len(names), 6), sharex=True)
    families = (*PAPER_FAMILIES, "legendre", "fourier", "(block means)")
    for (i, measure), (j, name) in ((m, s) for m in enumerate(MEASURES) for s in enumerate(names)):
        axis = axes[i, j]
        for index, family in enumerate(families):
            mine = [
                row
                for row in rows
                if (row["signal"], row["measure"], row["family"]) == (name, measure, family)
                and row["range"] in ("default", "")
            ]
            style = {"color": "k", "linestyle": ":"} if family.startswith("(") else {"color": f"C{index}"}
            axis.plot([r["n"] for r in mine], [r["overall"] for r in mine], marker=".", label=family, **style)
        axis.set(xscale="log", yscale="log", title=f"{name}, {measure}")
        axis.set_xticks(SIZES, [str(n) for n in SIZES])
        axis.xaxis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:.2g}")
        low, high = axis.get_ylim()
        axis.yaxis.set_minor_formatter("{x:.2g}" if high < 30 * low else "")
        axis.tick_params(axis="y", which="both", labelsize=6)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="lower center", ncols=len(families), fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("error (no memory = 1)")
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=90)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Write the table, the figure and PROVENANCE.md."""
    parser = argparse.ArgumentParser(description="Reconstruction error of every family as an online memory.")
    parser.add_argument("--out", type=Path, default=Path("results/memory"))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--length", type=int, default=2048, help="samples of the classical signals")
    options = parser.parse_args(arguments)
    groups = [classical(options.length), [ecg()]]
    rows: list[dict[str, Any]] = []
    for measure in MEASURES:
        for n in options.sizes:
            rows += [row for group in groups for signal in group for row in naive(signal, measure, n)]
            for family in (*PAPER_FAMILIES, *BASES):
                for span in ranges(family):
                    for group in groups:
                        rows += remember(family, span, measure, n, group)
            print(f"{measure}, N = {n}: done")
    write_csv(options.out / "reconstruction.csv", rows)
    draw(rows, options.out / "reconstruction.png")
    (options.out / "PROVENANCE.md").write_text(
        f"Made by {provenance('python -m wavessm_lab.studies.memory', arguments)}.\n"
    )


if __name__ == "__main__":
    main()
