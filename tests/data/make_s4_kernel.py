"""Writes `s4_kernel.npz`: parameters and convolution kernel of the official S4 block (DPLR, LegS), for a parity test.

    python tests/data/make_s4_kernel.py PATH_TO_STATE_SPACES_S4

The checkout's `models/s4/s4.py` runs on the CPU, with seed 0, 4 channels, 32 states and length 200, in double precision
(in single its own rounding is about 1e-5 of the kernel). C is read before the first forward pass, which overwrites it.
The file also names the versions it came from.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

CHANNELS, STATES, LENGTH = 4, 32, 200


def official_kernel(checkout: str) -> dict[str, np.ndarray]:
    """log_dt (H,), lam (modes,), B (modes,), C (H, modes), P (1, modes) and K (H, L) of one S4 kernel."""
    sys.path.insert(0, checkout)
    from models.s4.s4 import SSMKernelDPLR

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    kernel = SSMKernelDPLR(
        d_model=CHANNELS, d_state=STATES, l_max=LENGTH, init="legs", n_ssm=1, dt_min=0.001, dt_max=0.1, channels=1
    ).double()
    with torch.no_grad():
        C = torch.view_as_complex(kernel.C.clone())[0]
        dt, A, B, _, P, _ = kernel._get_params()
        K, _ = kernel(L=LENGTH)
    values = {"dt": dt.reshape(-1), "lam": A[0], "B": B[0, 0], "C": C, "P": P[:, 0], "K": K[0]}
    return {name: value.detach().numpy() for name, value in values.items()}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    versions = f"torch {torch.__version__}, numpy {np.__version__}; state-spaces/s4 models/s4/s4.py; seed 0"
    np.savez_compressed(Path(__file__).with_name("s4_kernel.npz"), versions=versions, **official_kernel(sys.argv[1]))
