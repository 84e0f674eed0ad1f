"""Shared by tests and documentation: one thread per worker, and the profiles of hypothesis.

`wavessm` is repeatable; `fuzz` (`make fuzz`, or HYPOTHESIS_PROFILE=fuzz) draws anew each time and stops starting tests
after FUZZ_SECONDS.
"""

import builtins
import os
import time

# Two workers whose linear algebra each takes both cores get in each other's way by a factor of ten.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# Triton binds its kernels when it is first imported: to the interpreter where there is no GPU.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("wavessm", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("fuzz", deadline=None, derandomize=False, max_examples=200, print_blob=True)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "wavessm")
settings.load_profile(PROFILE)
START = time.monotonic()


def pytest_runtest_teardown() -> None:
    """Forget the last value of a doctest: tyro, where it is imported after it, asks that all builtins be hashable."""
    vars(builtins).pop("_", None)


def pytest_runtest_setup() -> None:
    """Under the fuzz profile, skip what is left when the time is used up."""
    if PROFILE == "fuzz" and time.monotonic() - START > float(os.environ.get("FUZZ_SECONDS", "600")):
        pytest.skip("FUZZ_SECONDS are used up")
