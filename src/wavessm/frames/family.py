"""The families of atoms, as records, and `make_frame`, which turns one into a `Frame`.

A family is a `Wavelet`, which is tiled over the window, or a `Basis`, whose atoms cover it by themselves. Adding one is
adding a record to `WAVELETS` or `BASES`, or calling `register_family` from outside. s runs over [0, 1] with 1 as now.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pywt
from scipy import interpolate, signal, special

from wavessm.errors import OptionError, check_int, is_int, real_array, shape_error, unknown_name
from wavessm.frames.frame import Frame
from wavessm.frames.quadrature import Array, Quadrature
from wavessm.frames.tiling import Tiling, Wavelet, tile

PAPER_FAMILIES = ("morlet", "gauss", "mexhat", "dpss", "db6")
"""The five families of the paper."""

RESERVED = ("legs", "legt", "fout", "s4d-legs", "s4d-lin", "s4d-inv")
"""Names of operators and layers that are not made from a frame, so that no family may take them."""

_POINTS_PER_ATOM = 4  # fewest grid points per atom; coarser grids cannot tell the atoms apart


def default_quadrature(n: int) -> Quadrature:
    """Return panels of order 8 with 16 points per atom, and at least 2,049 points."""
    return _panels(max(256, 2 * n), 8)


@lru_cache(maxsize=32)
def _panels(count: int, order: int) -> Quadrature:
    return Quadrature.panels(count, order)


def _single_panel(n: int) -> Quadrature:
    """One panel whose order integrates products of polynomials of degree < n exactly, with room to spare."""
    return _panels(1, max(64, 2 * n))


@dataclass(frozen=True)
class Basis:
    """A family that is not tiled from a mother wavelet.

    Args:
        atoms: Function of n and points s (L,) of [0, 1] that returns the values of n atoms, shape (n, L).
        quadrature: Function of n that returns the grid on which those atoms are resolved.
    """

    atoms: Callable[[int, Array], Array]
    quadrature: Callable[[int], Quadrature] = default_quadrature


Family = Wavelet | Basis

# -- wavelets -------------------------------------------------------------------------------------------------------


def _gauss(order: int = 1) -> Wavelet:
    """The derivative of a Gaussian of the given order, ψ(x) = He_order(x) e^{−x²/2}; the paper's eq. (gauss-deriv)."""
    order = check_int(order, "gauss: order", minimum=1)
    return Wavelet(
        lambda x: special.eval_hermitenorm(order, x) * np.exp(-(x**2) / 2),
        support=(-8.0 - order / 4, 8.0 + order / 4),
        centre_frequency=np.sqrt(order) / (2 * np.pi),
    )


@lru_cache
def _dpss(time_bandwidth: float = 2.0, tapers: int = 3) -> Wavelet:
    """The tapers best concentrated in a band, shifted together (Slepian 1978; the paper's eq. (dpss)).

    A window of width w has bandwidth time_bandwidth / w, so each scale is one bandwidth.
    """
    x = np.linspace(-0.5, 0.5, 2049)
    spline = interpolate.CubicSpline(x, signal.windows.dpss(len(x), time_bandwidth, tapers).T)
    return Wavelet(lambda t: spline(np.clip(t, -0.5, 0.5)).T, (-0.5, 0.5), centre_frequency=time_bandwidth)


_PARAMETERS = {"cmor": "cmor1.5-1.0", "shan": "shan1.0-1.5", "fbsp": "fbsp2-1.0-1.5"}  # of names without any


@lru_cache(maxsize=256)
def _pywavelet(name: str) -> Wavelet:
    """Any wavelet of PyWavelets by name, discrete or continuous, as a mother wavelet."""
    full = _PARAMETERS.get(name, name)
    if full in pywt.wavelist(kind="discrete"):
        # Orthogonal families give (φ, ψ, x); biorthogonal ones (φ, ψ, φ̃, ψ̃, x), of which ψ̃ synthesises.
        *functions, x = pywt.Wavelet(full).wavefun(level=10)
        table = functions[-1]
        return Wavelet(lambda t: np.interp(t, x, table, left=0.0, right=0.0), (float(x[0]), float(x[-1])))
    wavelet = pywt.ContinuousWavelet(full)
    low, high = float(wavelet.lower_bound), float(wavelet.upper_bound)
    psi, x = wavelet.wavefun(length=1 << 13)
    spline = interpolate.CubicSpline(x, psi)
    return Wavelet(lambda t: spline(np.clip(t, low, high)), (low, high))


_MORLET = Wavelet(lambda x: np.exp(-(x**2) / 2) * np.cos(5 * x), centre_frequency=5 / (2 * np.pi))
_MEXHAT = Wavelet(lambda x: (1 - x**2) * np.exp(-(x**2) / 2), centre_frequency=np.sqrt(2) / (2 * np.pi))
WAVELETS: dict[str, Callable[[], Wavelet]] = {
    "morlet": lambda: _MORLET,  # Morlet et al. 1982; the paper's eq. (morlet); PyWavelets' morl
    "gauss": _gauss,
    "mexhat": lambda: _MEXHAT,  # Ricker 1953; PyWavelets' mexh
    "dpss": _dpss,
    "db6": partial(_pywavelet, "db6"),
}
"""The paper's wavelets, made on first use."""

# -- bases: polynomials and Fourier -----------------------------------------------------------------------------------


def _legendre(n: int, s: Array) -> Array:
    k = np.arange(n)[:, None]
    return np.sqrt(2 * k + 1) * special.eval_legendre(k, 2 * s - 1)


def _chebyshev(n: int, s: Array) -> Array:
    k = np.arange(n)[:, None]
    return np.cos(k * np.arccos(np.clip(2 * s - 1, -1, 1))) / np.sqrt(0.5 * (1 - 1 / (4 * k**2 - 1)))


def _fourier(n: int, s: Array) -> Array:
    k = np.arange(n)[:, None]
    angle = 2 * np.pi * ((k + 1) // 2) * s
    return np.where(k % 2 == 1, np.cos(angle), np.where(k == 0, np.sqrt(0.5), np.sin(angle))) * np.sqrt(2)


BASES = {
    "legendre": Basis(_legendre, _single_panel),  # orthonormal shifted Legendre polynomials; HiPPO (Gu et al. 2020)
    "fourier": Basis(_fourier),  # 1, √2 cos 2πks, √2 sin 2πks; HiPPO-FouT
    "chebyshev": Basis(_chebyshev, _single_panel),  # of the first kind, unit energy
}
"""The families beside wavelets, for comparison."""

# -- names ----------------------------------------------------------------------------------------------------------

_FAMILIES: dict[str, Callable[[], Family]] = {}


def families() -> list[str]:
    """Return the names that `make_frame` knows: the paper's five, the bases, then every wavelet of PyWavelets."""
    return list(_FAMILIES)


def is_family(name: str) -> bool:
    """Return whether `make_frame` knows a name, PyWavelets' with parameters (cmor1.5-1.0) included."""
    if name in _FAMILIES or not name.startswith(tuple(_PARAMETERS)):
        return name in _FAMILIES
    try:
        return bool(_pywavelet(name))
    except (ValueError, TypeError):  # PyWavelets answers parameters of zero with a TypeError
        return False


def register_family(name: str, family: Family | Callable[[Array], Array]) -> None:
    """Make a family known by name everywhere.

    Args:
        name: A name that is not taken.
        family: A `Wavelet`, a `Basis`, or a mother wavelet ψ(x) that decays within |x| ≤ 8.

    Raises:
        OptionError: The name is taken.
    """
    if name in RESERVED or name in _FAMILIES:
        taken = "names a closed form" if name in RESERVED else "is already registered"
        raise OptionError(f"register_family: {name!r} {taken}; choose another name.")
    record = family if isinstance(family, Family) else Wavelet(family)
    _FAMILIES[name] = lambda: record


_FAMILIES.update(WAVELETS)
_FAMILIES.update({name: partial(BASES.__getitem__, name) for name in BASES})
_FAMILIES.update({name: partial(_pywavelet, name) for name in pywt.wavelist() if name not in _FAMILIES})


def get_family(family: str | Family | Callable[[Array], Array], order: int | None = None) -> tuple[str, Family]:
    """Return the name and the record of a family given as `make_frame` takes it."""
    if order is not None and family != "gauss":
        raise OptionError(f"make_frame: family '{family}' takes no order; gauss does.")
    if not isinstance(family, str):
        name = getattr(family, "__name__", "own family")
        return name, family if isinstance(family, Family) else Wavelet(family)
    if order is not None:
        return family, _gauss(order)
    if not is_family(family):
        raise unknown_name("family", family, _FAMILIES)
    return family, _FAMILIES[family]() if family in _FAMILIES else _pywavelet(family)


# -- frames ---------------------------------------------------------------------------------------------------------


def make_frame(
    family: str | Family | Callable[[Array], Array],
    n: int,
    *,
    order: int | None = None,
    scales: int | Sequence[float] | None = None,
    f_min: float | None = None,
    f_max: float | None = None,
    alpha: float | None = None,
    grid: int | npt.ArrayLike | Quadrature | None = None,
) -> Frame:
    """Return N unit-energy atoms of one family on [0, 1].

    The same call twice in a process returns the same frame, unless the grid is an array.

    Args:
        family: A name of `families()`, a `Wavelet`, a `Basis`, or a function ψ(x) that decays within |x| ≤ 8.
        n: Number of atoms N, at least 2.
        order: Order of the derivative, for families that have one (gauss).
        scales: Wavelets: number of scales, or the pseudo-frequencies in cycles per window themselves.
        f_min: Wavelets: lowest pseudo-frequency, 0.5 by default.
        f_max: Wavelets: highest pseudo-frequency; by default chosen as `frames/tiling.py` explains.
        alpha: Wavelets: hop in units of the width of the atoms, which decides f_max.
        grid: Number of points (rounded up to whole panels of eight), the points themselves, or a `Quadrature`; chosen
            by the family by default.

    Raises:
        UnknownNameError: A family that is not registered.
        OptionError: An option out of range, or one that the family does not use.
        RankError: Options that make the atoms dependent.

    Example:
        >>> frame = make_frame("morlet", n=64)
        >>> frame.atoms.shape[0], frame.rank()
        (64, 64)
    """
    n = check_int(n, "make_frame: n", minimum=2)
    tiling = Tiling(scales if scales is None or np.ndim(scales) == 0 else tuple(scales), f_min, f_max, alpha)  # type: ignore[arg-type]
    if is_int(grid):
        grid = _panels((check_int(grid, "make_frame: grid", minimum=9) + 6) // 8, 8)
    elif grid is not None and not isinstance(grid, Quadrature):
        grid = Quadrature.from_points(grid)
    return _build(family, n, order, tiling, grid)


@lru_cache(maxsize=32)
def _build(
    family: str | Family | Callable[[Array], Array],
    n: int,
    order: int | None,
    tiling: Tiling,
    grid: Quadrature | None,
) -> Frame:
    name, record = get_family(family, order)
    quadrature = grid or (record.quadrature(n) if isinstance(record, Basis) else default_quadrature(n))
    points = len(quadrature.grid)
    # A basis on its own grid is resolved there by construction; anything else needs enough points.
    if points < (_POINTS_PER_ATOM * n if grid is not None or isinstance(record, Wavelet) else n):
        raise OptionError(
            f"make_frame: n is {n}, too large for a grid of {points} points; pass grid={_POINTS_PER_ATOM * n} or more."
        )
    if isinstance(record, Wavelet):
        atoms = tile(record, n, quadrature, tiling)
    else:
        unused = [option for option, value in vars(tiling).items() if value is not None]
        if unused:
            raise OptionError(f"make_frame: family '{name}' is not tiled from a wavelet and takes no {unused[0]}.")
        atoms = real_array(record.atoms(n, quadrature.grid), f"make_frame: family '{name}'")
        if atoms.shape != (n, points):
            raise shape_error(f"make_frame: the output of family '{name}'", atoms, f"(n, points) = {(n, points)}")
        atoms = atoms / np.sqrt(atoms**2 @ quadrature.weights)[:, None]
    frame = Frame(atoms, quadrature, name=name)
    frame.require_full_rank()
    return frame
