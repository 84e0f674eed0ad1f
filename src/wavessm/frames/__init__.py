"""Stage 1: frames. `make_frame` turns a family name, a mother wavelet or a function into N atoms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
import pywt

from wavessm.errors import OptionError
from wavessm.frames.bases import BASES, Basis, default_quadrature
from wavessm.frames.frame import Frame
from wavessm.frames.quadrature import Quadrature
from wavessm.frames.recipe import Tiling, Wavelet, tile
from wavessm.frames.wavelets import dpss, gauss, is_parametric, mexhat, morlet, pywavelet
from wavessm.registry import Registry

__all__ = [
    "PAPER_FAMILIES",
    "Basis",
    "Frame",
    "Quadrature",
    "Wavelet",
    "dpss",
    "families",
    "gauss",
    "make_frame",
    "register_family",
]

PAPER_FAMILIES = ("morlet", "gauss", "mexhat", "dpss", "db6")
"""The five families of the paper."""

POINTS_PER_ATOM = 4
"""Fewest grid points an atom; coarser grids cannot tell the atoms apart."""

Family = Wavelet | Basis
_FAMILIES: Registry[Callable[..., Family]] = Registry("family")


def register_family(name: str, family: Family | Callable[..., Family]) -> None:
    """Make a family known by name everywhere: a `Wavelet`, a `Basis`, or a function that returns one."""
    _FAMILIES.register(name, (lambda: family) if isinstance(family, Family) else family)


def families() -> list[str]:
    """Names that `make_frame` knows: the paper's five, the baselines, then every wavelet of PyWavelets."""
    return _FAMILIES.names()


for _name, _make in {"morlet": morlet, "gauss": gauss, "mexhat": mexhat, "dpss": dpss}.items():
    register_family(_name, _make)
register_family("db6", partial(pywavelet, "db6"))
for _name, _basis in BASES.items():
    register_family(_name, _basis)
for _name in pywt.wavelist():
    if _name not in _FAMILIES:
        register_family(_name, partial(pywavelet, _name))


def make_frame(
    family: str | Family | Callable[[np.ndarray], np.ndarray],
    n: int,
    *,
    order: int | None = None,
    scales: int | Sequence[float] | None = None,
    f_min: float | None = None,
    f_max: float | None = None,
    alpha: float | None = None,
    grid: int | npt.ArrayLike | Quadrature | None = None,
) -> Frame:
    """N unit-energy atoms of one family on [0, 1].

    family  a name of `families()`, a `Wavelet`, a `Basis`, or a function ψ(x) that decays within |x| ≤ 8
    n       number of atoms, at least 2
    order   derivative order, for families that have one (gauss)
    scales  number of scales or the pseudo-frequencies themselves, f_min, f_max, alpha: see `frames/recipe.py`
    grid    number of points, the points themselves, or a `Quadrature`; chosen by the family if not given

    The same call twice in a process returns the same frame. Raises `UnknownNameError`, `OptionError`, and
    `RankError` where the options make the atoms dependent.

    >>> frame = make_frame("morlet", n=64)
    >>> frame.atoms.shape[0], frame.rank()
    (64, 64)
    """
    tiling = (scales if scales is None or isinstance(scales, int) else tuple(scales), f_min, f_max, alpha)
    if n < 2:
        raise OptionError(f"make_frame: n is {n}, expected at least 2 atoms.")
    if grid is None or isinstance(grid, int | Quadrature):
        return _build(family, int(n), order, tiling, grid)
    return _build.__wrapped__(family, int(n), order, tiling, Quadrature.from_points(grid))


@lru_cache(maxsize=32)
def _build(
    family: str | Family | Callable[[np.ndarray], np.ndarray],
    n: int,
    order: int | None,
    tiling: tuple,
    grid: int | Quadrature | None,
) -> Frame:
    name, record = _resolve(family, order)
    quadrature = _quadrature(record, n, grid)
    points = len(quadrature.grid)
    # A basis on its own grid is resolved there by construction; anything else must be given enough points.
    if points < (POINTS_PER_ATOM * n if grid is not None or isinstance(record, Wavelet) else n):
        raise OptionError(
            f"make_frame: n is {n}, too large for a grid of {points} points; pass grid={POINTS_PER_ATOM * n} or more."
        )
    if isinstance(record, Wavelet):
        atoms = tile(record, n, quadrature, Tiling.of(*tiling))
    else:
        options = zip(("scales", "f_min", "f_max", "alpha"), tiling, strict=True)
        given = [key for key, value in options if value is not None]
        if given:
            raise OptionError(f"make_frame: family '{name}' is not tiled from a wavelet and takes no {given[0]}.")
        atoms = record.atoms(n, quadrature.grid)
        atoms = atoms / np.sqrt(atoms**2 @ quadrature.weights)[:, None]
    frame = Frame(atoms, quadrature, name=name)
    frame.require_full_rank()
    return frame


def _resolve(family: str | Family | Callable[[np.ndarray], np.ndarray], order: int | None) -> tuple[str, Family]:
    """The record behind a name, a record or a bare function, and what to call it."""
    if isinstance(family, Family):
        make: Callable[..., Family] = lambda: family  # noqa: E731
        name = "own family"
    elif callable(family):
        make, name = partial(Wavelet, family), getattr(family, "__name__", "own wavelet")
    else:
        name = str(family)
        make = partial(pywavelet, name) if is_parametric(name) else _FAMILIES[name]
    if order is None:
        return name, make()
    if "order" not in inspect.signature(make).parameters:
        raise OptionError(f"make_frame: family '{name}' takes no order; gauss does.")
    return name, make(order=order)


def _quadrature(record: Family, n: int, grid: int | Quadrature | None) -> Quadrature:
    if grid is None:
        return record.quadrature(n) if isinstance(record, Basis) else default_quadrature(n)
    if isinstance(grid, Quadrature):
        return grid
    if grid < 9:
        raise OptionError(f"make_frame: grid is {grid}, expected at least 9 points.")
    return Quadrature.panels((grid - 1 + 7) // 8, order=8)
