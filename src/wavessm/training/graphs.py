"""Stage 8f: a whole training step as one CUDA graph.

Small models spend a step on launching kernels. The step (forward, backward, optimiser) runs a few times as usual on a
side stream, those steps count, and is then captured; from there on a step is a copy of the batch into fixed buffers and
one launch. The step must be a function of the batch alone: fixed shapes, no value read back, rates as tensors. Cases of
different lengths come filled up to one length (`loader.of_one_length`), their true lengths in a buffer of their own. A
curriculum has a capture for each of its stages (`module.advance`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from wavessm.data.source import Batch
from wavessm.errors import OptionError

WARM_UP = 3


class CapturedStep:
    """`step` from the fourth call on as a graph. The result stays valid until the next call."""

    def __init__(self, step: Callable[[Batch], Tensor]) -> None:
        self.step = step
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.buffers: Batch
        self.result: Tensor

    def fits(self, batch: Batch) -> bool:
        """Whether the batch has the shapes of the capture, if there is one already."""
        return self.graph is None or [_form(part) for part in self.buffers] == [_form(part) for part in batch]

    def anew(self) -> CapturedStep:
        """The same step without a capture. The old graph must not go while it still runs."""
        torch.cuda.synchronize()
        return CapturedStep(self.step)

    def __call__(self, batch: Batch) -> Tensor:
        self.calls += 1
        if self.calls <= WARM_UP:
            return self._beside(batch)
        if self.graph is None:
            self._capture(batch)
        assert self.graph is not None
        for name, there, here in zip(Batch._fields, self.buffers, batch, strict=True):
            if _form(there) != _form(here):
                raise OptionError(
                    f"cuda_graphs: {name} has {_form(here)}, but the step was captured with {_form(there)}."
                )
            if there is not None and here is not None:
                there.copy_(here)
        self.graph.replay()
        return self.result

    def _beside(self, batch: Batch) -> Tensor:
        """One real step on a side stream, where cuBLAS and the allocator settle before the capture."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self.step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _capture(self, batch: Batch) -> None:
        self.buffers = Batch(*(None if part is None else part.clone() for part in batch))  # type: ignore[arg-type]
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)  # a cached cast of a weight would be stale at the next replay
        try:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = self.step(self.buffers)
        finally:
            torch.set_autocast_cache_enabled(cached)


def _form(part: Tensor | None) -> str:
    return "no values" if part is None else f"shape {tuple(part.shape)} and {part.dtype}"
