"""One backward pass of a layer at every arithmetic and structure, for NVIDIA's memory checker to watch.

    compute-sanitizer --kernel-name kns=sum_kernel python benchmarks/sanitize.py
    compute-sanitizer --kernel-name kns=walk_kernel python benchmarks/sanitize.py

A compiler that reads shared memory where nothing was written need not change a result, nor end a run; this does. Set
PYTORCH_NO_CUDA_MEMORY_CACHING=1 so that no pool hides what lies beyond a tensor. It needs a GPU.
"""

from __future__ import annotations

import torch

import wavessm as ws

# batch, d_model, d_state, length: full and half tiles, wide states, an odd length
SHAPES = ((64, 8, 64, 1000), (50, 8, 64, 2048), (16, 8, 64, 1024), (32, 8, 128, 1024), (3, 8, 64, 333))


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("sanitize.py: no GPU; the kernels run on NVIDIA GPUs only.")
    for family in ("morlet", "legs"):
        for precision in ("fp32", "tf32", "bf16"):
            for batch, d_model, d_state, length in SHAPES:
                layer = ws.WaveSSM(d_model, d_state, family=family, precision=precision, bidirectional=True).cuda()
                dtype = torch.bfloat16 if precision == "bf16" else torch.float32
                x = torch.randn(batch, length, d_model, device="cuda", dtype=dtype, requires_grad=True)
                layer(x).square().mean().backward()
                torch.cuda.synchronize()
                print(family, precision, (batch, d_model, d_state, length), "ran", flush=True)


if __name__ == "__main__":
    main()
