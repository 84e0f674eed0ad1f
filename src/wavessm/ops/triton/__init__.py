"""Triton kernels of the engine, called by `wavessm.ops.dispatch`. Read `scan`, `plan`, `walk`, then the tables."""

from wavessm.ops.triton import gate, irregular, norm, scan

__all__ = ["gate", "irregular", "norm", "scan"]
