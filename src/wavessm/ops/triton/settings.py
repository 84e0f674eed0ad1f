"""How the walks of `triton_scan` are cut into programs: tiles, segments, warps and stages, and what served best."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Settings:
    """How the work is cut. Powers of two, chunk and tile at least 16 (the smallest side of a tensor-core product)."""

    chunk: int = 64  # M, samples in a chunk
    tile: int = 16  # rows in a program
    segments: int = 1  # rows that each signal is cut into
    warps: int = 4
    stages: int = 3
    warps_back: int = 4  # of the sums
    stages_back: int = 2
    part: int = 32  # samples of the chunk in one program of theirs
    block: int = 32  # chunks that they take at a time
    programs: int = 256  # that they are spread over, if the channels alone are fewer


@lru_cache(maxsize=256)
def default_settings(batch: int, channels: int, width: int, length: int, precision: str, dense: bool) -> Settings:
    """What was fastest on an H200 at the sizes of the benchmarks; width counts slots, or reals of a dense state."""
    wide = width > (64 if dense else 32)
    huge = width > 64 and not (dense and precision != "fp32")  # tables of 64 samples would not fit a multiprocessor
    chunk = min(32 if huge else 64, power_of_two(length))
    light = not wide and precision != "fp32"
    filled = batch / (-(-batch // 64) * 64)  # of tiles of 64 rows
    tile = 64 if light and filled > 0.7 else 32 if wide and batch >= 32 else 16
    segments = min(_segments(batch, channels, tile), max(1, -(-length // chunk) // 4))
    warps = 8 if width > 64 or (wide and precision == "fp32") else 2 if light and not dense and tile == 16 else 4
    part, block, warps_back, stages_back = (32, 32, 4, 3) if wide and precision == "fp32" else (64, 32, 4, 1)
    if width > 64:
        part, block, warps_back, stages_back = chunk // 2, 32 if dense else 16, 4, 2
    elif dense and precision == "tf32" and not wide:
        block = 64
    stages = 2 if dense and tile == 64 else 3
    programs = 512 if dense or wide else 256
    return Settings(chunk, tile, segments, warps, stages, warps_back, stages_back, min(part, chunk), block, programs)


def _segments(batch: int, channels: int, tile: int) -> int:
    """Rows that a signal is cut into: enough for whole tiles where it would fill less than half of one, and for four
    programs a processor where there would be less than one."""
    if 2 * batch < tile:
        return -(-max(tile, 256 * tile // channels) // batch)
    programs = channels * -(-batch // tile)
    return -(-512 // programs) if programs <= 128 else 1


def power_of_two(n: int, least: int = 16) -> int:
    """The next one, n itself included."""
    return max(least, 1 << (n - 1).bit_length())
