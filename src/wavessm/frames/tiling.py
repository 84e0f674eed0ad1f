"""From a mother wavelet to exactly N atoms, by the rule of the paper's appendix on frames.

    f_k = f_min … f_max     pseudo-frequencies in cycles per window, log-spaced
    s_k = f_c / f_k         dilation of the mother wavelet, f_c its centre frequency
    σ_k = s_k σ_0           width in time, σ_0 the energy-weighted spread of the mother wavelet
    hop_k ∝ α σ_k           distance between centres: narrow atoms are placed more densely than wide ones
    n_k                     number of centres at scale k, in proportion to 1 / hop_k, by largest remainder

The paper leaves the range open, and the range decides everything: the proportions n_k do not depend on α, so for a
fixed N it is f_max that sets how densely the atoms are placed. Too low, and they overlap until they are dependent; too
high, and they leave gaps in time and frequency that no state can remember. By default f_max is the one at which octave
scales have hops of α σ_k; α starts at the paper's 0.75 and grows until κ(S) is at most `MAX_CONDITION`; and every scale
of a real wavelet has at least two atoms, since a slow scale with one cannot tell the two ends of the window apart
(complex wavelets and DPSS have several atoms at each centre). Options that are given are used as given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from wavessm.errors import NotFiniteError, OptionError, check_int, check_positive, shape_error
from wavessm.frames.quadrature import Array, Quadrature

MAX_CONDITION = 1e12
"""Largest κ(S) of the default range: the tight atoms then keep ten of their sixteen digits."""

PAPER_ALPHA = 0.75
"""Hop in units of the width of the atoms, as the paper suggests; the first that the default range tries."""

_WIDENING = 2 ** (1 / 8)  # factor on α between two attempts at the default range


@dataclass(frozen=True)
class Wavelet:
    """A mother wavelet: all that is needed to fill a window with shifted and dilated copies of it.

    Args:
        function: ψ at points x of shape (M,). Returns (M,) real values; (M,) complex values, whose real and imaginary
            parts become two atoms; or (voices, M), several waveforms that are shifted and dilated together.
        support: (low, high); ψ is taken as zero outside.
        centre_frequency: f_c in cycles per unit of x; by default where the spectrum peaks.

    Raises:
        OptionError: A support that is not two increasing finite numbers.

    Example:
        >>> import numpy as np
        >>> hat = Wavelet(lambda x: (1 - x**2) * np.exp(-(x**2) / 2), support=(-8, 8))
        >>> round(hat.frequency, 3), round(hat.spread, 3)   # √2 / 2π and √(7/6)
        (0.225, 1.08)
    """

    function: Callable[[Array], npt.NDArray]
    support: tuple[float, float] = (-8.0, 8.0)
    centre_frequency: float | None = None

    def __post_init__(self) -> None:
        low, high = map(float, self.support)
        if not (low < high and np.isfinite(high - low)):
            raise OptionError(f"Wavelet: support is {self.support!r}, expected (low, high), finite, with low < high.")
        object.__setattr__(self, "support", (low, high))

    def voices(self, x: Array) -> Array:
        """Return ψ at x as real waveforms, zero outside the support, (M,) → (voices, M)."""
        values = np.atleast_2d(np.asarray(self.function(x)))
        if values.ndim != 2 or values.shape[1] != len(x):
            expected = f"({len(x)},) or (voices, {len(x)}); write it with numpy operations on arrays"
            raise shape_error(f"Wavelet: the output of the function for {len(x)} points", values, expected)
        if np.iscomplexobj(values):
            values = np.concatenate([values.real, values.imag])
        inside = (x >= self.support[0]) & (x <= self.support[1])
        if not np.isfinite(values[:, inside]).all():
            raise NotFiniteError("Wavelet: the function gave NaN or infinity inside its support.")
        return np.where(inside, values, 0.0)

    @property
    def frequency(self) -> float:
        """Centre frequency f_c in cycles per unit of x."""
        return _measure(self)[0]

    @property
    def spread(self) -> float:
        """Energy-weighted standard deviation σ_0."""
        return _measure(self)[2]


@lru_cache(maxsize=256)
def _measure(wavelet: Wavelet) -> tuple[float, float, float, int]:
    """Centre frequency, energy-weighted centre and spread, and number of voices of a mother wavelet."""
    x = np.linspace(*wavelet.support, 1 << 12)
    values = wavelet.voices(x)
    energy = np.sum(values**2, axis=0)
    if energy.sum() == 0:
        raise OptionError(f"Wavelet: the function is zero on its support {wavelet.support}; give another support.")
    energy /= energy.sum()
    centre = float(energy @ x)
    spread = float(np.sqrt(energy @ (x - centre) ** 2))
    frequency = wavelet.centre_frequency
    return _spectral_peak(values, x[1] - x[0]) if frequency is None else frequency, centre, spread, len(values)


def _spectral_peak(values: Array, spacing: float) -> float:
    """Frequency at which the largest spectrum peaks, refined by a parabola between the points of the transform."""
    points = 1 << 19
    spectrum = np.abs(np.fft.rfft(values, points, axis=1)).max(axis=0)
    if spectrum.argmax() == 0:
        raise OptionError("Wavelet: the spectrum peaks at frequency zero; give centre_frequency, or another function.")
    peak = 1 + int(spectrum[1:-1].argmax())
    left, top, right = spectrum[peak - 1 : peak + 2]
    curvature = left - 2 * top + right
    offset = 0.5 * (left - right) / curvature if curvature < 0 else 0.0
    return float((peak + offset) / (points * spacing))


@dataclass(frozen=True)
class Tiling:
    """How the window is filled, by the options of `make_frame`; None is the default of the module's docstring."""

    scales: int | tuple[float, ...] | None = None  # number, or the pseudo-frequencies; by default one per octave
    f_min: float | None = None  # lowest pseudo-frequency in cycles per window
    f_max: float | None = None  # highest pseudo-frequency
    alpha: float | None = None  # hop in units of the width of the atoms; decides f_max

    def __post_init__(self) -> None:
        for name in ("f_min", "f_max", "alpha"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_positive(getattr(self, name), name))
        if isinstance(self.scales, tuple):
            listed = tuple(check_positive(f, "scales: a pseudo-frequency") for f in self.scales)
            object.__setattr__(self, "scales", listed)
            if not listed or not self.f_min is self.f_max is self.alpha is None:
                raise OptionError("scales: a list of pseudo-frequencies goes without f_min, f_max and alpha.")
        elif self.scales is not None:
            object.__setattr__(self, "scales", check_int(self.scales, "scales", minimum=1))
        if self.f_max is not None and self.alpha is not None:
            raise OptionError("alpha: it decides f_max and has no effect where f_max is given; leave one of them out.")
        if self.scales == 1 and self.f_min is not None:
            raise OptionError("f_min: a single scale is at f_max, so f_min has no effect; leave it out.")
        if self.f_max is not None and self.f_max < self.lowest:
            raise OptionError(f"f_min is {self.lowest}, f_max is {self.f_max}; expected 0 < f_min ≤ f_max.")

    @property
    def lowest(self) -> float:
        """Lowest pseudo-frequency, by default that of half a cycle per window."""
        return 0.5 if self.f_min is None else self.f_min

    def frequencies(self, f_max: float) -> Array:
        """Return the pseudo-frequencies, log-spaced up to f_max, shape (scales,)."""
        if isinstance(self.scales, tuple):
            return np.asarray(self.scales)
        count = self.scales if self.scales is not None else max(1, round(np.log2(f_max / self.lowest)) + 1)
        return np.geomspace(self.lowest, f_max, count) if count != 1 else np.array([f_max])


def allocate(desired: npt.ArrayLike, total: int, minimum: int = 0) -> npt.NDArray[np.int_]:
    """Return integers in proportion to `desired` that sum to `total`, by largest remainder; `minimum` where it fits.

    >>> allocate([1.0, 2.0, 4.0], 10).tolist(), allocate([1.0, 2.0, 4.0], 10, minimum=2).tolist()
    ([1, 3, 6], [2, 3, 5])
    """
    quota = np.asarray(desired, float)
    quota = quota / quota.sum() * total
    counts = np.floor(quota).astype(int)
    short = total - counts.sum()
    counts[np.argsort(counts - quota, kind="stable")[:short]] += 1
    minimum = min(minimum, total // len(counts))
    while counts.min() < minimum:
        counts[counts.argmax()] -= 1
        counts[counts.argmin()] += 1
    return counts


def _place(wavelet: Wavelet, n: int, quadrature: Quadrature, frequencies: Array, minimum: int = 0) -> Array:
    """n unit-energy atoms (n, L): copies of ψ at the given pseudo-frequencies, `minimum` or more centres at each.

    Several voices share a centre; where n is not a multiple of them, the last centre lacks some.
    """
    frequency, centre, spread, voices = _measure(wavelet)
    dilations = frequency / frequencies
    counts = allocate(frequencies, -(-n // voices), minimum)
    grid = quadrature.grid
    rows = []
    for s, count in zip(dilations, counts, strict=True):
        centres = np.linspace(0, 1, count) if count > 1 else np.full(count, 0.5)
        x = (grid - centres[:, None]) / s + centre  # (count, L)
        values = wavelet.voices(x.ravel()).reshape(voices, count, len(grid))
        rows.append(values.swapaxes(0, 1).reshape(-1, len(grid)))
    atoms = np.concatenate(rows)[:n]
    norms = np.sqrt(atoms**2 @ quadrature.weights)
    if dilations.min() * spread * (len(grid) - 1) < 1 or norms.min() == 0:
        raise OptionError(
            f"atoms at {frequencies.max():.4g} cycles are {dilations.min() * spread:.1e} wide, too narrow for "
            f"{len(grid)} grid points; lower f_max or pass a larger grid."
        )
    return atoms / norms[:, None]


def tile(wavelet: Wavelet, n: int, quadrature: Quadrature, tiling: Tiling) -> Array:
    """Return n unit-energy atoms of one mother wavelet on the grid of a quadrature, shape (n, L)."""
    if tiling.f_max is not None or isinstance(tiling.scales, tuple):
        return _place(wavelet, n, quadrature, tiling.frequencies(tiling.f_max or 0.0))
    frequency, _, spread, voices = _measure(wavelet)

    def range_up_to(alpha: float) -> Array:
        # Octave scales up to f_max ask for Σ f_k / (α f_c σ_0) ≈ 2 f_max / (α f_c σ_0) centres of `voices` atoms.
        f_max = n * alpha * frequency * spread / (2 * voices)
        return tiling.frequencies(max(2 * tiling.lowest, f_max))

    if tiling.alpha is not None:
        return _place(wavelet, n, quadrature, range_up_to(tiling.alpha))
    minimum = 2 if voices == 1 else 0
    best, best_condition, alpha = None, np.inf, PAPER_ALPHA
    while best is None or range_up_to(alpha)[-1] <= n:
        atoms = _place(wavelet, n, quadrature, range_up_to(alpha), minimum)
        eigenvalues = np.linalg.eigvalsh((atoms * quadrature.weights) @ atoms.T)
        condition = eigenvalues[-1] / eigenvalues[0] if eigenvalues[0] > 0 else np.inf
        if condition <= MAX_CONDITION:
            return atoms
        if best is None or condition < best_condition:
            best, best_condition = atoms, condition
        alpha *= _WIDENING
    return best
