"""Shared by tests and documentation: one thread a worker, and hypothesis without deadlines, repeatable."""

import importlib.util
import os

# Two workers whose linear algebra each takes both cores get in each other's way by a factor of ten.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import torch
from hypothesis import settings

# Triton binds its kernels when it is first imported: to the interpreter where there is no GPU.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Modules on top of a package that is not there cannot be imported to look for doctests.
collect_ignore = [] if importlib.util.find_spec("sktime") else ["src/wavessm/estimators/sktime.py"]

settings.register_profile("wavessm", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("wavessm")
