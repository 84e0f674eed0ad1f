"""The DPLR layer against the official S4 kernel: a golden file, and its code where WAVESSM_S4 names a checkout."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import wavessm as ws

DATA = Path(__file__).parent / "data"


def kernel_of_ours(theirs):
    """Our kernel from their parameters."""
    channels, modes = theirs["C"].shape
    layer = ws.WaveSSM(channels, 2 * modes, family="legs", structure="dplr").double()

    def pairs(values):
        return torch.from_numpy(np.stack([values.real, values.imag], axis=-1))[None]

    with torch.no_grad():
        layer.log_dt.copy_(torch.from_numpy(np.log(theirs["dt"])))
        layer.log_decay.copy_(torch.from_numpy(np.log(-theirs["lam"].real)))
        layer.frequency.copy_(torch.from_numpy(theirs["lam"].imag))
        for name in ("B", "C", "P"):
            getattr(layer, name).copy_(pairs(theirs[name]))
        return layer.kernel(theirs["K"].shape[1])[0].numpy()


def test_kernel_equals_the_golden_one():
    with np.load(DATA / "s4_kernel.npz") as theirs:
        K = theirs["K"]
        np.testing.assert_allclose(kernel_of_ours(theirs), K, atol=1e-7 * np.abs(K).max())


@pytest.mark.filterwarnings("ignore")
def test_kernel_equals_that_of_a_checkout(monkeypatch):
    checkout = os.environ.get("WAVESSM_S4")
    if not checkout:
        pytest.skip("WAVESSM_S4 names no checkout of state-spaces/s4")
    monkeypatch.syspath_prepend(str(DATA))
    default = torch.get_default_dtype()
    try:
        from make_s4_kernel import official_kernel

        theirs = official_kernel(checkout)
    finally:
        torch.set_default_dtype(default)
        sys.path[:] = [path for path in sys.path if path != checkout]
    np.testing.assert_allclose(kernel_of_ours(theirs), theirs["K"], atol=1e-7 * np.abs(theirs["K"]).max())
