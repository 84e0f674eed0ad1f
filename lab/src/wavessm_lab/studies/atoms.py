"""What the atoms look like: Legendre against Morlet, and the five families at three widths."""

from __future__ import annotations

import numpy as np

from wavessm.frames import PAPER_FAMILIES, WAVELETS, Array, Wavelet, get_family, make_frame
from wavessm.inspection.drawing import Drawing, canvas
from wavessm_lab.studies import COLOURS, LABELS, table_rows

SCALES = (1.0, 0.315, 0.125)
"""Widths of the paper's figure of atoms; at 1 the mother wavelet's support fills the window."""


def legendre_against_morlet(n: int = 64, points: int = 600) -> Drawing:
    """A few Legendre polynomials beside a few atoms of the Morlet frame of the same size."""
    s = np.linspace(0, 1, points)
    polynomials = make_frame("legendre", n).evaluate(s)
    frame = make_frame("morlet", n)
    waves = frame.evaluate(s)
    degrees = (1, 2, 5, 9)
    places = ((2.0, 0.35), (4.0, 0.7), (8.0, 0.25), (16.0, 0.6))  # cycles per window, centre
    chosen = [
        int(np.argmin(np.abs(np.log(frame.frequencies / cycles)) + 4 * np.abs(frame.centres - centre)))
        for cycles, centre in places
    ]
    left = {f"legendre_{degree}": polynomials[degree] for degree in degrees}
    right = {f"morlet_{index}": waves[index] for index in chosen}
    with canvas() as plt:
        figure, axes = plt.subplots(1, 2, figsize=(8.4, 4.2), sharex=True)
        for axis, curves, colour in zip(axes, (left, right), ("legendre", "morlet"), strict=True):
            for row, values in enumerate(curves.values()):
                peak = 2.3 * np.abs(values).max()
                axis.fill_between(s, -row, values / peak - row, color=COLOURS[colour], alpha=0.2, linewidth=0)
                axis.plot(s, values / peak - row, color=COLOURS[colour])
                axis.axhline(-row, color="0.85", linewidth=0.6, zorder=0)
            axis.set(xlabel="s: oldest … now", xlim=(0, 1))
            axis.spines["left"].set_visible(False)
        axes[0].set_yticks(-np.arange(4), [f"degree {degree}" for degree in degrees])
        labels = [f"{frame.frequencies[i]:.0f} cycles\nat {frame.centres[i]:.2f}" for i in chosen]
        axes[1].set_yticks(-np.arange(4), labels)
        axes[0].set_title("Legendre: every coordinate holds the whole past")
        axes[1].set_title("Morlet: every coordinate holds its own part")
    spreads, least = frame.spreads[chosen], make_frame("legendre", n).spreads[list(degrees)].min()
    caption = (
        f"Legendre polynomials against Morlet atoms of a frame of {n}: the spread of energy falls from "
        f"{spreads.max():.2f} to {spreads.min():.2f} of the window as these atoms narrow; no polynomial here is below "
        f"{least:.2f} (uniform: 0.29)."
    )
    return Drawing(figure, table_rows({"s": s, **left, **right}), caption)


def mother_wavelets() -> dict[str, Wavelet]:
    """The five families as mother wavelets."""
    return {name: get_family(name)[1] for name in WAVELETS}  # type: ignore[misc]


def atoms_at_three_scales(points: int = 1600) -> Drawing:
    """One atom of each family in the middle of the window, at three widths, all of unit energy."""
    s = np.linspace(0, 1, points)
    curves: dict[str, Array] = {}
    with canvas() as plt:
        figure, axes = plt.subplots(len(PAPER_FAMILIES), len(SCALES), figsize=(8.4, 8), sharex=True)
        for row, (family, wavelet) in zip(axes, mother_wavelets().items(), strict=True):
            low, high = wavelet.support
            for axis, scale in zip(row, SCALES, strict=True):
                x = (s - 0.5) * (high - low) / scale + (low + high) / 2
                voices = wavelet.voices(x)
                voices = voices / np.sqrt(np.mean(voices**2, axis=1, keepdims=True))
                for voice, (values, style) in enumerate(zip(voices, ("-", "--", ":"), strict=False)):
                    axis.plot(s, values, style, color=COLOURS[family])
                    curves[f"{family}_{scale:g}" + (f"_{voice}" if len(voices) > 1 else "")] = values
                axis.axhline(0, color="0.85", linewidth=0.6, zorder=0)
                axis.set_xlim(0, 1)
            row[0].set_ylabel(LABELS[family])
        for axis, scale in zip(axes[0], SCALES, strict=True):
            axis.set_title(f"scale {scale:g}")
        for axis in axes[-1]:
            axis.set_xlabel("s")
    caption = (
        "Atoms of the five families at three scales, all of unit energy, so peaks grow as atoms narrow; DPSS has three "
        "tapers (solid, dashed, dotted) at each place."
    )
    return Drawing(figure, table_rows({"s": s, **curves}), caption)
