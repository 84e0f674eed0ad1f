"""Conditioning: κ(S) of the frame operator against N, how well operators diagonalise, and the paper's lemma
‖A‖ ≤ ‖A S‖ / λ_min(S) as κ(S) grows.

Eight scales from 1 to N/2 cycles condition better than the default range and remember worse (see `memory`).

Raw frames with a given hop are made here without the check for full rank, since their failing is what is to be seen.
Through S^½ the raw operator is similar to the tight one, A = S^½ A_tight S^−½, which gives a second bound,
‖A‖ ≤ √κ(S) ‖A_tight‖. It is drawn beside the lemma's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wavessm.frames import BASES, PAPER_ALPHA, PAPER_FAMILIES, Frame, Tiling, default_quadrature, make_frame, tile
from wavessm.inspection.drawing import Drawing, canvas
from wavessm.operators import MEASURES, make_operator
from wavessm_lab.studies import COLOURS, LABELS, fitted_slope
from wavessm_lab.studies.atoms import mother_wavelets

SIZES = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
SPANS = {
    "hop": f"hop of {PAPER_ALPHA} widths, as the paper has it",
    "default": "hop widened until κ(S) ≤ 1e12 (default)",
    "to n/2": "eight scales from 1 to N/2 cycles",
}


def raw_frame(family: str, n: int, alpha: float) -> Frame:
    """The recipe's n atoms with the hop fixed at alpha widths, dependent or not."""
    quadrature = default_quadrature(n)
    return Frame(tile(mother_wavelets()[family], n, quadrature, Tiling(alpha=alpha)), quadrature, name=family)


def frame_for(family: str, n: int, span: str) -> Frame:
    """The family's frame with a range of SPANS; bases have only one."""
    if family in BASES or span == "default":
        return make_frame(family, n)
    return raw_frame(family, n, PAPER_ALPHA) if span == "hop" else make_frame(family, n, scales=8, f_min=1, f_max=n / 2)


def measure(family: str, n: int, span: str) -> dict[str, Any]:
    """One row: condition numbers of a frame, raw and tight, and of its operators; NaN where atoms are dependent."""
    frame = frame_for(family, n, span)
    row = {"family": family, "range": span, "n": n, "rank": frame.rank(), "kappa_raw": frame.condition_number()}
    if frame.rank() < n:
        names = ("kappa_tight", *(f"{what}_{name}" for name in MEASURES for what in ("residual", "eigenvectors")))
        return row | dict.fromkeys(names, np.nan)
    tight = frame.tighten()
    row["kappa_tight"] = tight.condition_number()
    for name in MEASURES:
        operator = make_operator(tight, name)
        row[f"residual_{name}"] = operator.identity_residual()
        row[f"eigenvectors_{name}"] = operator.to_diagonal(max_condition=float("inf")).condition_number
    return row


def condition_numbers(sizes: tuple[int, ...] = SIZES) -> Drawing:
    """κ(S) against N: raw dashed, tight solid, and no tight frame where the raw atoms are dependent."""
    rows: list[dict[str, Any]] = []
    with canvas() as plt:
        figure, axes = plt.subplots(1, 3, figsize=(11, 4), sharey=True)
        for axis, (span, title) in zip(axes, SPANS.items(), strict=True):
            for family in (*PAPER_FAMILIES, *(BASES if span == "default" else ())):
                mine = [measure(family, n, span) for n in sizes]
                rows += mine
                if family in COLOURS:
                    raw, tight = (np.array([row[name] for row in mine]) for name in ("kappa_raw", "kappa_tight"))
                    lost = np.isnan(tight)
                    axis.plot(sizes, raw, "--", marker=".", color=COLOURS[family], label=LABELS[family])
                    axis.plot(sizes, tight, color=COLOURS[family])
                    axis.plot(np.array(sizes)[lost], raw[lost], "x", ms=7, color=COLOURS[family])
            axis.set(xscale="log", yscale="log", xlabel="N", title=title, ylim=(0.3, 3e32))
            axis.axhline(2.0**104, color="0.7", linestyle=":", linewidth=0.9)
            axis.set_xticks([8, 16, 32, 64, 128, 256], ["8", "16", "32", "64", "128", "256"])
            axis.xaxis.minorticks_off()
        axes[0].text(sizes[0], 2.0**105, "(1 / rounding)²", color="0.5", fontsize=7.5)
        axes[0].text(90, 5.0, "tight: all at 1", color="0.3", fontsize=8)
        axes[0].set_ylabel("κ(S), raw (× dependent) and tight")
        axes[1].legend(loc="upper left", ncols=2)
    worst = max(row["kappa_tight"] for row in rows if row["kappa_tight"] == row["kappa_tight"])
    hop = [row for row in rows if row["range"] == "hop"]
    dependent = sum(row["rank"] < row["n"] for row in hop)
    caption = (
        "Condition number of the frame operator against N, raw (dashed) and tight (solid: at most "
        f"1 + {worst - 1:.0e}); with the paper's hop {dependent} of {len(hop)} frames are dependent in double "
        "precision and cannot be tightened."
    )
    return Drawing(figure, rows, caption)


def measure_lemma(family: str, n: int, alpha: float, measure: str) -> dict[str, Any] | None:
    """‖A‖ of the raw frame, the lemma's bound and the bound by similarity; None where the atoms are dependent."""
    frame = raw_frame(family, n, alpha)
    if frame.rank() < n:
        return None
    operator, tight = make_operator(frame, measure), make_operator(frame.tighten(), measure)
    kappa, tight_norm = frame.condition_number(), float(np.linalg.norm(tight.A, 2))
    return {
        "family": family,
        "measure": measure,
        "n": n,
        "alpha": float(alpha),
        "kappa": kappa,
        "norm": float(np.linalg.norm(operator.A, 2)),
        "bound": operator.norm_bound(),
        "similarity_bound": float(np.sqrt(kappa) * tight_norm),
        "norm_tight": tight_norm,
    }


def lemma_on_norms(n: int = 32, alphas: tuple[float, ...] = tuple(np.geomspace(0.5, 4, 13))) -> Drawing:
    """‖A‖ against its bound as the hop narrows and conditioning worsens."""
    found = [measure_lemma(f, n, alpha, m) for m in MEASURES for f in PAPER_FAMILIES for alpha in alphas]
    # the raw A loses √κ(S): beyond 1e20 fewer than six digits are left
    rows = sorted((row for row in found if row and row["kappa"] < 1e20), key=lambda row: row["kappa"])
    with canvas() as plt:
        figure, axes = plt.subplots(1, 3, figsize=(11, 4))
        for axis, measure in zip(axes, MEASURES, strict=False):
            for family in PAPER_FAMILIES:
                mine = [row for row in rows if (row["family"], row["measure"]) == (family, measure)]
                kappa = [row["kappa"] for row in mine]
                axis.plot(kappa, [row["norm"] for row in mine], "o-", ms=3, color=COLOURS[family], label=LABELS[family])
                axis.plot(kappa, [row["bound"] for row in mine], "--", color=COLOURS[family], alpha=0.7)
                axis.plot(kappa, [row["norm_tight"] for row in mine], ":", color=COLOURS[family], alpha=0.7)
            axis.set(xscale="log", yscale="log", xlabel="κ(S) of the raw frame", title=measure)
        axes[0].set_ylabel("‖A‖₂ (dots), the lemma's bound (dashed),\ntight frame (dotted)")
        axes[0].legend()
        kappa = [row["kappa"] for row in rows]
        loose = [row["bound"] / row["norm"] for row in rows]
        looser = [row["similarity_bound"] / row["norm"] for row in rows]
        axes[2].plot(kappa, loose, ".", color="k", label="lemma: ‖A S‖ / λ_min(S)")
        axes[2].plot(kappa, looser, ".", color=COLOURS["legendre"], label="similarity: √κ(S) ‖A of the tight frame‖")
        axes[2].set(xscale="log", yscale="log", xlabel="κ(S) of the raw frame", title="bound / ‖A‖", ylim=(0.5, None))
        axes[2].legend()
    bad = [row for row in rows if row["kappa"] > 10]
    holds, tight = sum(row["norm"] <= row["bound"] for row in rows), [row["norm_tight"] for row in rows]
    slopes = [fitted_slope([row["kappa"] for row in bad], [row[key] for row in bad]) for key in ("norm", "bound")]
    caption = (
        f"‖A‖ of raw frames of {n} atoms against the lemma's bound, which holds in {holds} of {len(rows)} cases: ‖A‖ "
        f"grows like κ(S)^{slopes[0]:.2f}, the bound like κ(S)^{slopes[1]:.2f}; tight frames stay between "
        f"{min(tight):.0f} and {max(tight):.0f}."
    )
    return Drawing(figure, rows, caption)
