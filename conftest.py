"""Shared by tests and documentation: one thread a worker, and hypothesis without deadlines, repeatable."""

import os

# Two workers whose linear algebra each takes both cores get in each other's way by a factor of ten.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("wavessm", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("wavessm")
