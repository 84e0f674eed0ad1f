"""A front end for sound: log energies of a bank of Morlet filters, a frame every ten milliseconds.

A waveform of 16,000 samples a second says little sample by sample; what tells words apart is how the energy in bands of
frequency changes. Filters are analytic Morlet wavelets whose frequencies are equally spaced in mels, as wide as their
spacing. Every filter ends where its frame ends, so streams give the same frames as recordings.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wavessm.errors import OptionError, check_int, check_positive

WIDTH = 0.032  # seconds of the longest filter
BANDS = 40  # filters, where nothing else is said
LOWEST = 60.0  # hertz of the lowest filter
HIGHEST = 0.475  # highest frequency by default, as a part of the sampling rate
FLOOR = 1e-4  # added to energies, of which white noise of variance 1 has 1 in each band
SILENCE = 1e-5
"""RMS below which a recording is not made as loud as the others, of full scale 1: a third of a step of 16 bits."""
PARTS = 4  # places in a frame at which filters are applied; a frame holds the mean


class EnergyBank(nn.Module):
    """Log energies of a waveform in bands, (batch, length, channels) → (batch, frames, channels · n_bands).

    Args:
        sampling_rate: Of the waveform, in hertz.
        n_bands: Filters, from 60 Hz to `highest`.
        hop: Seconds of a frame.
        highest: Hertz of the highest filter; None takes 95 % of half the sampling rate.

    Attributes:
        hop: Samples of a frame.

    Example:
        >>> bank = EnergyBank(8000.0)
        >>> x = torch.randn(2, 800, 1)
        >>> frames, state = bank.stream(x[:, :320], bank.initial_state(2, 1))  # whole frames of 80 samples
        >>> rest, state = bank.stream(x[:, 320:], state)
        >>> torch.allclose(torch.cat([frames, rest], 1), bank(x), atol=1e-5), bank(x).shape
        (True, torch.Size([2, 10, 40]))
    """

    filters: Tensor  # (2 · n_bands, 1, taps): real parts, then imaginary ones

    def __init__(
        self, sampling_rate: float, n_bands: int = BANDS, hop: float = 0.01, highest: float | None = None
    ) -> None:
        super().__init__()
        check_positive(sampling_rate, "EnergyBank: sampling_rate")
        self.n_bands = check_int(n_bands, "EnergyBank: n_bands", minimum=2)
        if not hop * sampling_rate >= PARTS:
            advice = f"fewer than {PARTS}; use a larger hop"
            raise OptionError(f"EnergyBank: a frame of {hop} s has {hop * sampling_rate:g} samples, {advice}.")
        self.stride = round(hop * sampling_rate / PARTS)
        self.hop = PARTS * self.stride
        self.frequencies = _mel_spaced(highest or HIGHEST * sampling_rate, self.n_bands)
        self.register_buffer("filters", self._make_filters(sampling_rate), persistent=False)

    def _make_filters(self, sampling_rate: float) -> Tensor:
        """Morlet atoms of unit norm and zero mean, as wide in frequency as they are apart."""
        taps = max(self.hop, round(WIDTH * sampling_rate))
        sigma = 1 / (2 * math.pi * 0.6 * np.gradient(self.frequencies))
        sigma = np.clip(sigma, 0.6 * self.stride / sampling_rate, taps / sampling_rate / 6)[:, None]  # seconds
        t = (np.arange(taps) - taps / 2) / sampling_rate
        envelope = np.exp(-((t / sigma) ** 2) / 2)
        atoms = envelope * np.exp(2j * math.pi * self.frequencies[:, None] * t)
        atoms -= envelope * (atoms.sum(1) / envelope.sum(1))[:, None]
        atoms /= np.linalg.norm(atoms, axis=1)[:, None]
        return torch.from_numpy(np.concatenate([atoms.real, atoms.imag])[:, None]).float()

    def channel_names(self, channels: tuple[str, ...] = ("",)) -> tuple[str, ...]:
        """Return a name for each column: the channel and the frequency of the band."""
        return tuple(f"{name} {frequency:.0f} Hz".strip() for name in channels for frequency in self.frequencies)

    def frames(self, lengths: Tensor) -> Tensor:
        """Return the number of frames of recordings of some lengths; what is left of the last frame is dropped."""
        return (lengths // self.hop).clamp(min=1)

    def initial_state(self, batch: int, channels: int) -> Tensor:
        """Return the samples before the first one: zeros (batch · channels, 1, taps − stride)."""
        return self.filters.new_zeros(batch * channels, 1, self.filters.shape[-1] - self.stride)

    def stream(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the frames of a chunk (batch, a multiple of hop, channels), and the state after it."""
        batch, length, channels = x.shape
        if length % self.hop:
            raise OptionError(f"EnergyBank: a chunk has {length} samples, expected a multiple of a frame, {self.hop}.")
        if not length:
            return x.new_zeros(batch, 0, channels * self.n_bands), state
        joined = torch.cat([state, x.mT.reshape(batch * channels, 1, length).to(state.dtype)], dim=-1)
        power = F.conv1d(joined, self.filters, stride=self.stride).square()
        power = power.unflatten(1, (2, self.n_bands)).sum(1).unflatten(-1, (-1, PARTS)).mean(-1)
        frames = (power + FLOOR).log().view(batch, -1, length // self.hop).mT
        return frames, joined[..., length:]

    def forward(self, x: Tensor) -> Tensor:
        """Return the frames of whole recordings; one shorter than a frame is filled up with zeros."""
        length = max(1, x.shape[1] // self.hop) * self.hop
        x = F.pad(x, (0, 0, 0, max(0, length - x.shape[1])))[:, :length]
        return self.stream(x, self.initial_state(x.shape[0], x.shape[2]))[0]


def level(x: Tensor) -> Tensor:
    """Take the mean from recordings (…, length, channels) and divide them by their RMS, silence excepted."""
    x = x - x.mean(-2, keepdim=True)
    return x / x.square().mean((-2, -1), keepdim=True).sqrt().clamp(min=SILENCE)


def _mel_spaced(highest: float, n: int) -> np.ndarray:
    """Frequencies (n,) in hertz, equally spaced in mels."""
    low, high = (2595 * math.log10(1 + f / 700) for f in (min(LOWEST, highest / 4), highest))
    return 700 * (10 ** (np.linspace(low, high, n) / 2595) - 1)
