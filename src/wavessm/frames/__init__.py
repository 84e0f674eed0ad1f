"""Frames: N waveforms on [0, 1]. Read `quadrature`, `frame`, `tiling`, `family` in this order; then `operators`."""

from wavessm.frames.family import (
    BASES,
    PAPER_FAMILIES,
    RESERVED,
    WAVELETS,
    Basis,
    default_quadrature,
    families,
    get_family,
    is_family,
    make_frame,
    register_family,
)
from wavessm.frames.frame import Frame
from wavessm.frames.quadrature import Array, Quadrature, frozen, lobatto
from wavessm.frames.tiling import PAPER_ALPHA, Tiling, Wavelet, allocate, tile

__all__ = [
    "BASES", "PAPER_ALPHA", "PAPER_FAMILIES", "RESERVED", "WAVELETS", "Array", "Basis", "Frame", "Quadrature",
    "Tiling", "Wavelet", "allocate", "default_quadrature", "families", "frozen", "get_family", "is_family", "lobatto",
    "make_frame", "register_family", "tile",
]  # fmt: skip
