"""The wavelet families, as data: a function, its support, its centre frequency, a reference.

Adding a family is adding a record here, or calling `register_family` from outside.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pywt
from scipy import interpolate, signal, special

from wavessm.errors import OptionError, check_int
from wavessm.frames.quadrature import Array
from wavessm.frames.recipe import Wavelet


def morlet() -> Wavelet:
    """A cosine under a Gaussian, five radians to a standard deviation."""
    return Wavelet(
        lambda x: np.exp(-(x**2) / 2) * np.cos(5 * x),
        centre_frequency=5 / (2 * np.pi),
        reference="Morlet et al. 1982; the paper's eq. (morlet); PyWavelets' morl",
    )


def gauss(order: int = 1) -> Wavelet:
    """The derivative of a Gaussian of the given order."""
    order = check_int(order, "gauss: order", least=1)
    return Wavelet(
        lambda x: special.eval_hermitenorm(order, x) * np.exp(-(x**2) / 2),
        support=(-8.0 - order / 4, 8.0 + order / 4),
        centre_frequency=np.sqrt(order) / (2 * np.pi),
        reference="the paper's eq. (gauss-deriv)",
    )


def mexhat() -> Wavelet:
    """The Mexican hat: the negative second derivative of a Gaussian."""
    return Wavelet(
        lambda x: (1 - x**2) * np.exp(-(x**2) / 2),
        centre_frequency=np.sqrt(2) / (2 * np.pi),
        reference="Ricker 1953; PyWavelets' mexh",
    )


def dpss(time_bandwidth: float = 2.0, tapers: int = 3) -> Wavelet:
    """Discrete prolate spheroidal sequences: the tapers best concentrated in a band, shifted together.

    A window of width w has bandwidth time_bandwidth / w, so each scale of the recipe is one bandwidth.
    """
    if not 0 < tapers <= 2 * time_bandwidth:
        raise OptionError(
            f"dpss: {tapers} tapers at time_bandwidth {time_bandwidth:g}, expected 1 to 2·time_bandwidth."
        )
    x = np.linspace(-0.5, 0.5, 2049)
    spline = interpolate.CubicSpline(x, signal.windows.dpss(len(x), time_bandwidth, tapers).T)
    return Wavelet(
        lambda t: spline(np.clip(t, -0.5, 0.5)).T,
        support=(-0.5, 0.5),
        centre_frequency=time_bandwidth,
        reference="Slepian 1978; the paper's eq. (dpss)",
    )


PARAMETERS = {"cmor": "cmor1.5-1.0", "shan": "shan1.0-1.5", "fbsp": "fbsp2-1.0-1.5"}
"""What PyWavelets' parametric families mean here when named without parameters."""


@lru_cache(maxsize=256)
def pywavelet(name: str) -> Wavelet:
    """Any wavelet of PyWavelets by name, discrete or continuous, as a mother wavelet for the recipe."""
    full = PARAMETERS.get(name, name)
    if full in pywt.wavelist(kind="discrete"):
        return _discrete(full)
    return _continuous(full)


def _discrete(name: str) -> Wavelet:
    # Orthogonal families give (φ, ψ, x); biorthogonal ones (φ, ψ, φ̃, ψ̃, x), of which ψ̃ synthesises.
    *functions, x = pywt.Wavelet(name).wavefun(level=10)
    psi = functions[-1]

    def function(t: Array) -> Array:
        return np.interp(t, x, psi, left=0.0, right=0.0)

    return Wavelet(function, support=(float(x[0]), float(x[-1])), reference=f"PyWavelets' {name}, cascade level 10")


def _continuous(name: str) -> Wavelet:
    wavelet = pywt.ContinuousWavelet(name)
    low, high = float(wavelet.lower_bound), float(wavelet.upper_bound)
    psi, x = wavelet.wavefun(length=1 << 13)
    spline = interpolate.CubicSpline(x, psi)
    return Wavelet(lambda t: spline(np.clip(t, low, high)), support=(low, high), reference=f"PyWavelets' {name}")


def is_parametric(name: str) -> bool:
    """Whether PyWavelets takes this name with parameters, as in cmor1.5-1.0."""
    if not name.startswith(tuple(PARAMETERS)) or name in PARAMETERS:
        return False
    try:
        psi, _ = pywt.ContinuousWavelet(name).wavefun(length=16)
    except (ValueError, TypeError):  # PyWavelets answers parameters of zero with a TypeError
        return False
    return bool(np.isfinite(psi).all())
