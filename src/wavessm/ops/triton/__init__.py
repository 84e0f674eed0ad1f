"""Triton kernels of the engine; `wavessm.ops` decides when they run."""
