"""A whole training step as one CUDA graph.

Small models spend a step on launching kernels. The step (forward, backward, optimiser) runs a few times as usual on a
side stream, those steps count, and is then captured; from there on a step is a copy of the batch into fixed buffers and
one launch. The step must be a function of the batch alone: fixed shapes, no value read back, rates as tensors. Each
shape of batch (a stage of a curriculum, a bucket's width) has a capture of its own. Captures share their memory, since
they never run at once; shapes beyond the first 32 run as usual.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wavessm.data.source import Batch

WARM_UP = 3
MOST = 32
"""Shapes that are captured."""


class CapturedStep:
    """`step`, as a graph from the fourth batch of a shape on. The result stays valid until the next call."""

    def __init__(self, step: Callable[[Batch], Tensor]) -> None:
        self.step = step
        self.calls: dict[tuple, int] = {}
        self.captures: dict[tuple, Capture] = {}

    def __call__(self, batch: Batch) -> Tensor:
        form = tuple((part.shape, part.dtype) if isinstance(part, Tensor) else part for part in batch)
        if form not in self.captures:
            self.calls[form] = self.calls.get(form, 0) + 1
            if self.calls[form] <= WARM_UP or len(self.captures) == MOST:
                return self._beside(batch)
            first = next(iter(self.captures.values()), None)
            self.captures[form] = Capture(self.step, batch, None if first is None else first.graph.pool())
        return self.captures[form](batch)

    def _beside(self, batch: Batch) -> Tensor:
        """One real step on a side stream, which warms up cuBLAS and the allocator for the capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return result


class Capture:
    """A graph of `step` for batches of one shape, in the memory of another graph's `pool` if given."""

    def __init__(self, step: Callable[[Batch], Tensor], batch: Batch, pool: Any) -> None:
        self.buffers = Batch(*(part.clone() if isinstance(part, Tensor) else part for part in batch))  # type: ignore[arg-type]
        self.graph = torch.cuda.CUDAGraph()
        gc.collect()  # an old graph that went during the capture would end it
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a cached cast of a weight would be stale at the next replay
        try:
            with torch.cuda.graph(self.graph, pool=pool):
                self.result = step(self.buffers)
        finally:
            torch.set_autocast_cache_enabled(cached)

    def __call__(self, batch: Batch) -> Tensor:
        for there, here in zip(self.buffers, batch, strict=True):
            if isinstance(there, Tensor) and isinstance(here, Tensor):
                there.copy_(here)
        self.graph.replay()
        return self.result
