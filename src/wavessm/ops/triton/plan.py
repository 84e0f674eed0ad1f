"""The launches of one scan on a GPU: how rows, chunks and segments are cut, and which kernels run in which order.

One program takes a channel and a tile of *rows*, keeps the state in registers and walks over the chunks of those rows.
A row is a signal of the batch or, where there are too few of them to fill the chip, one segment of it: then a first
walk finds what each segment adds to the state, a small kernel chains the segments, and the full walk starts each row
from its true state. The direction that reads backwards is the adjoint of a forward walk, so it walks back with the
same tables and nothing is flipped.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wavessm.ops.triton.language import cdiv, power_of_two
from wavessm.ops.triton.tables import KernelTables
from wavessm.ops.triton.walk import bridge_kernel, sum_kernel, walk_kernel


class Settings(NamedTuple):
    """How the work is cut: powers of two, chunk and tile at least 16, the smallest side of a tensor-core product."""

    chunk: int = 64  # M, samples in a chunk
    tile: int = 16  # rows in a program
    segments: int = 1  # rows that each signal is cut into
    warps: int = 4
    stages: int = 3
    warps_back: int = 4  # of the gradients' sums
    stages_back: int = 2
    part: int = 32  # samples of the chunk in one of their programs
    block: int = 32  # chunks that they add at a time
    programs: int = 256  # their number, if the channels alone are fewer


def default_chunk(width: int, precision: str, dense: bool, length: int | None) -> int:
    """Samples in a chunk; width counts slots, or reals of a dense state, and a length of None stands for any."""
    huge = width > 64 and not (dense and precision != "fp32")  # tables of 64 samples would not fit a multiprocessor
    most = 32 if huge else 64
    return most if length is None else min(most, power_of_two(length))


@lru_cache(maxsize=256)
def default_settings(
    batch: int, channels: int, width: int, length: int, precision: str, dense: bool, chunk: int
) -> Settings:
    """The fastest settings on an H200 at the sizes of the benchmarks."""
    wide = width > (64 if dense else 32)
    filled = batch / (cdiv(batch, 64) * 64)  # of tiles of 64 rows
    tile = 64 if not wide and filled > 0.7 and precision != "fp32" else 32 if wide and batch >= 32 else 16
    warps = 8 if width > 64 else 2 if not wide and not dense and tile == 16 and precision != "fp32" else 4
    stages = 2 if tile == 64 and dense else 3
    part, block, warps_back, stages_back = 64, 32, 4, 1
    if width > 64:
        part, block, warps_back, stages_back = chunk // 2, 32 if dense else 16, 4, 2
    elif precision == "fp32":
        stages = 3 if tile == 16 else 2
        block, stages_back = (32, 3) if wide else (64, 1)
    elif dense and precision == "tf32":
        block = 64
    elif precision == "bf16" and not dense:
        tile, warps = (16, 2) if wide else (tile, warps)
        stages, block, warps_back, stages_back = 4, 128 if wide else 64, 8, 2
    segments = min(_segments(batch, channels, tile), max(1, cdiv(length, chunk) // 4))
    programs = 512 if dense or wide else 256
    return Settings(chunk, tile, segments, warps, stages, warps_back, stages_back, min(part, chunk), block, programs)


def _segments(batch: int, channels: int, tile: int) -> int:
    """Rows that a signal is cut into: enough for whole tiles if the batch fills less than half of one, and for four
    programs on each processor if there would be less than one."""
    if 2 * batch < tile:
        return cdiv(max(tile, 256 * tile // channels), batch)
    programs = channels * cdiv(batch, tile)
    return cdiv(512, programs) if programs <= 128 else 1


class ScanPlan:
    """The launches of one call; width counts slots in two planes, or reals of a dense state in one."""

    def __init__(
        self, batch: int, channels: int, length: int, width: int, planes: int, cut: Settings, precision: str
    ) -> None:
        self.batch, self.channels, self.length, self.width, self.planes = batch, channels, length, width, planes
        self.cut, M, chunks = cut, cut.chunk, cdiv(length, cut.chunk)  # the last chunk possibly incomplete
        self.steps = cdiv(chunks, cut.segments)  # chunks in a row
        self.segments = cdiv(chunks, self.steps)  # rows of a signal with at least one chunk; all but the last are full
        self.rows = batch * self.segments
        self.edge_shape = batch, self.segments, channels, planes, width  # of the states at one end of all rows
        blocks = cdiv(batch * chunks, cut.block)
        self.per_split = cdiv(blocks, max(1, min(blocks, cut.programs // channels)))  # blocks of chunks in a part
        table = M * M + 2 * planes * M * width + width * (width if planes == 1 else 3)  # dT, dE, dCᵀ and the decay's
        self.sums_shape = cdiv(blocks, self.per_split), channels, table
        self._sizes: dict[str, Any] = {
            "channels": channels, "modes": width, "chunks": chunks,
            "M": M, "N": power_of_two(width), "PRECISION": precision, "DENSE": planes == 1,
        }  # fmt: skip

    def forward(
        self, u: Tensor, tables: KernelTables, first: Tensor | None, states: Tensor | None, largest: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the walks of all directions, from the state `first` (batch, channels, planes, width) or zero.

        Fills the states before each chunk and `largest`, as `backward` takes them, if given; returns y and the state
        after the last chunk.
        """
        y = torch.empty(u.shape, dtype=u.dtype, device=u.device)
        ends = [
            self._run(u, tables, direction, direction == 1, None if direction else first, y, states, largest)
            for direction in range(tables.K.shape[0])
        ]
        return y, ends[0][:, -1].contiguous()

    def backward(
        self, u: Tensor, dy: Tensor, tables: KernelTables, states: Tensor, largest: Tensor | None, dlast: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the adjoint walks: du, the gradient of the first state, and partial sums of the tables' gradients.

        `largest` (directions, channels, 2) int32 are the bits of the largest |u| and |state|, None but for fp32. The
        sums are (directions, *`sums_shape`).
        """
        du, adjoints = torch.empty(u.shape, dtype=u.dtype, device=u.device), torch.empty_like(states)
        largest_dy = None if largest is None else torch.zeros_like(largest)
        ends = [
            self._run(dy, tables, direction, direction == 0, None if direction else dlast, du, adjoints, largest_dy)
            for direction in range(states.shape[0])
        ]
        sums = torch.empty(states.shape[0], *self.sums_shape, device=u.device)
        (strides, sizes), cut = self._sizes_of(u, dy), self.cut
        sum_kernel[(self.channels * (cut.chunk // cut.part), self.sums_shape[0], 1 + states.shape[0])](
            u, dy, states, adjoints, largest, largest_dy, sums, *strides, self.per_split, self.batch, **sizes,
            P=cut.part, Q=cut.block, DIRECTIONS=states.shape[0], num_warps=cut.warps_back, num_stages=cut.stages_back,
        )  # fmt: skip
        return du, ends[0][:, 0].contiguous(), sums

    def _run(
        self, x: Tensor, tables: KernelTables, direction: int, reverse: bool, edge: Tensor | None, y: Tensor,
        states: Tensor | None, largest: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Walk over x from the state `edge` or zero into y, `states` and `largest`; returns the states after each row.

        Where signals are cut into segments, a walk without outputs and a chain first find the state before each row.
        """
        begin = None
        if self.segments > 1 or edge is not None:
            begin = torch.zeros(self.edge_shape, device=x.device)
            if edge is not None:
                begin[:, -1 if reverse else 0] = edge
        if self.segments > 1:
            ends = self._walk(x, tables, direction, reverse, begin)
            if self.planes == 1:
                self._chain_dense(begin, ends, tables.decay, reverse)
            else:
                bridge_kernel[(self.channels, self.batch)](
                    begin, ends, tables.decay, self.channels, self.width, self.segments, self.steps,
                    N=power_of_two(self.width), REVERSE=reverse,
                )  # fmt: skip
        return self._walk(x, tables, direction, reverse, begin, y, states, largest)

    def _walk(
        self, x: Tensor, tables: KernelTables, direction: int, reverse: bool, begin: Tensor | None,
        y: Tensor | None = None, states: Tensor | None = None, largest: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Launch `walk_kernel`; the first of two directions adds the contribution of a chunk to itself for both."""
        ends = torch.empty(self.edge_shape, device=x.device)
        strides, sizes = self._sizes_of(x)
        walk_kernel[(self.channels, cdiv(self.rows, self.cut.tile))](
            x, *tables, begin, y, states, largest, ends, *strides, self.rows, self.segments, self.steps, **sizes,
            R=self.cut.tile, REVERSE=reverse, DIRECTION=direction, DIRECTIONS=tables.K.shape[0],
            num_warps=self.cut.warps, num_stages=self.cut.stages,
        )  # fmt: skip
        return ends

    def _chain_dense(self, begin: Tensor | None, ends: Tensor, decay: Tensor, reverse: bool) -> None:
        assert begin is not None
        over = torch.linalg.matrix_power(decay.double(), self.steps).float()  # (channels, R, R)
        over = over if reverse else over.transpose(1, 2)
        s = torch.zeros_like(ends[:, 0, :, 0]).transpose(0, 1)  # (channels, batch, R)
        order = list(range(self.segments - 1, -1, -1) if reverse else range(self.segments))
        for source, target in pairwise(order):
            s = ends[:, source, :, 0].transpose(0, 1) + s @ over
            begin[:, target, :, 0] = s.transpose(0, 1)

    def _sizes_of(self, *signals: Tensor) -> tuple[list[int], dict[str, Any]]:
        """Strides of the signals in units that divide them and the length, and the arguments of every walk."""
        strides = [stride for x in signals for stride in x.stride()[:2]]
        even = math.gcd(16, self.length, *strides)
        return [stride // even for stride in strides], {**self._sizes, "length": self.length // even, "EVEN": even}


make_plan = lru_cache(maxsize=256)(ScanPlan)  # derived sizes are computed once
