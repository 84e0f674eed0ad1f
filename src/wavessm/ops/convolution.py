"""The long convolution by FFT: the third way to run a whole sequence, and the one with the fewest products.

It reads a kernel of the sequence's own length, so it serves whole sequences from rest only, and its rounding is spread
over all samples alike.
"""

from __future__ import annotations

import torch
from torch import Tensor


def convolve(u: Tensor, K: Tensor) -> Tensor:
    """Causal with K[0] and, if there are two, anticausal with K[1]. (batch, channels, L), (directions, channels, L)"""
    length = u.shape[-1]
    size = 2 * length
    k = torch.nn.functional.pad(K[0], (0, length))
    if len(K) == 2:  # lag −j stands at the end, where a circular convolution looks for it
        behind = torch.nn.functional.pad(K[1], (0, length)).flip(-1).roll(1, dims=-1)
        k = k + behind
    spectrum = torch.fft.rfft(u, n=size) * torch.fft.rfft(k.to(u.dtype), n=size)
    return torch.fft.irfft(spectrum, n=size)[..., :length]
