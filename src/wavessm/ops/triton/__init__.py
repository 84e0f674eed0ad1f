"""Triton kernels of the engine, called by `wavessm.ops.dispatch`. Read `scan`, `plan`, `walk`, then the tables."""
