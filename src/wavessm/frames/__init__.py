"""Stage 1: frames. `make_frame` turns a family name, a mother wavelet or a function into N atoms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pywt

from wavessm.errors import OptionError, Registry, ShapeError, check_int, is_int, real_array
from wavessm.frames.bases import BASES, Basis, default_quadrature
from wavessm.frames.frame import Frame
from wavessm.frames.quadrature import Quadrature
from wavessm.frames.recipe import Tiling, Wavelet, tile
from wavessm.frames.wavelets import dpss, gauss, is_parametric, mexhat, morlet, pywavelet

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

RESERVED = ("legs", "legt", "fout", "s4d-legs", "s4d-lin", "s4d-inv")
"""Names of operators and layers that are not made from a frame, so that no family may take them."""

Family = Wavelet | Basis
_FAMILIES: Registry[Callable[..., Family]] = Registry("family")


def register_family(name: str, family: Family | Callable[..., Any]) -> None:
    """Make a family known by name everywhere.

    family  a `Wavelet`, a `Basis`, a function without required arguments that returns one, or a mother wavelet ψ(x)
    """
    if not isinstance(name, str) or not (isinstance(family, Family) or callable(family)):
        raise OptionError(
            f"register_family: got {name!r} and a {type(family).__name__}, expected a text and a Wavelet, a Basis or a "
            "function; see the docstring."
        )
    if name in RESERVED:
        raise OptionError(f"register_family: {name!r} names a closed form; choose another name.")
    if isinstance(family, Family):
        _FAMILIES.register(name, lambda: family)
    else:
        _FAMILIES.register(name, partial(Wavelet, family) if _takes_points(family) else family)


def _takes_points(function: Callable) -> bool:
    """Whether a function must be given something, as ψ(x) must; NumPy's own functions do not say and must."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return True
    return any(p.default is p.empty and p.kind is not p.VAR_KEYWORD for p in parameters)


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
    grid    number of points (rounded up to whole panels of eight), the points themselves, or a `Quadrature`; chosen by
            the family if not given

    The same call twice in a process returns the same frame, unless the grid is an array. Raises `UnknownNameError`,
    `OptionError`, and `RankError` where the options make the atoms dependent.

    >>> frame = make_frame("morlet", n=64)
    >>> frame.atoms.shape[0], frame.rank()
    (64, 64)
    """
    n = check_int(n, "make_frame: n", least=2)
    given = {"scales": scales, "f_min": f_min, "f_max": f_max, "alpha": alpha}
    named = tuple(name for name, value in given.items() if value is not None)
    tiling = Tiling.of(scales, f_min, f_max, alpha)
    if grid is None or isinstance(grid, Quadrature):
        return _build(family, n, order, tiling, named, grid)
    if is_int(grid):
        return _build(family, n, order, tiling, named, check_int(grid, "make_frame: grid", least=9))
    return _build.__wrapped__(family, n, order, tiling, named, Quadrature.from_points(grid))


@lru_cache(maxsize=32)
def _build(
    family: str | Family | Callable[[np.ndarray], np.ndarray],
    n: int,
    order: int | None,
    tiling: Tiling,
    named: tuple[str, ...],
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
        atoms = tile(record, n, quadrature, tiling)
    else:
        if named:
            raise OptionError(f"make_frame: family '{name}' is not tiled from a wavelet and takes no {named[0]}.")
        atoms = real_array(record.atoms(n, quadrature.grid), f"make_frame: family '{name}'")
        if atoms.shape != (n, points):
            raise ShapeError(
                f"make_frame: family '{name}' gave atoms of shape {atoms.shape}, expected (n, points) = {(n, points)}."
            )
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
        own = name in _FAMILIES or not is_parametric(name)
        make = _FAMILIES[name] if own else partial(pywavelet, name)
    if order is not None and "order" not in inspect.signature(make).parameters:
        raise OptionError(f"make_frame: family '{name}' takes no order; gauss does.")
    record = make() if order is None else make(order=order)
    if not isinstance(record, Family):
        raise OptionError(
            f"make_frame: family '{name}' gave a {type(record).__name__}, expected a Wavelet or a Basis; "
            "see register_family."
        )
    return name, record


def _quadrature(record: Family, n: int, grid: int | Quadrature | None) -> Quadrature:
    if grid is None:
        return record.quadrature(n) if isinstance(record, Basis) else default_quadrature(n)
    if isinstance(grid, Quadrature):
        return grid
    return Quadrature.panels((grid - 1 + 7) // 8, order=8)
