"""How long it takes to build an operator, from nothing and a second time.

    python benchmarks/build.py --out results/build

Each cold build runs in a fresh set of caches; the identity residual is checked before a time is reported.
"""

from __future__ import annotations

import time

import torch

import wavessm as ws
from common import arguments, best_of, report
from wavessm import operators
from wavessm.frames.family import _build, _dpss, _panels, _pywavelet
from wavessm.frames.quadrature import lobatto
from wavessm.frames.tiling import _measure


def forget() -> None:
    """Empty every cache a build could profit from."""
    for cached in (_build, operators._of_frame, _measure, lobatto, _dpss, _panels, _pywavelet):
        cached.cache_clear()


def build(name: str, measure: str, n: int) -> ws.Operator:
    return ws.make_operator(name, measure=measure, n=n)


def main() -> None:
    parser = arguments(__doc__, "results/build")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256])
    options = parser.parse_args()
    torch.set_num_threads(2)
    rows = []
    for n in options.sizes:
        for family in (*ws.PAPER_FAMILIES, "legendre", "fourier", "sym8", "cmor"):

            def cold(family: str = family, n: int = n) -> None:
                forget()
                build(family, "scaled", n)

            seconds = best_of(cold)
            operator = build(family, "scaled", n)
            residual = operator.identity_residual()
            if residual > 1e-10:
                raise SystemExit(f"{family}, N = {n}: identity residual {residual:.1e}, no time reported.")
            start = time.perf_counter()
            again = build(family, "scaled", n)
            warm = time.perf_counter() - start
            rows.append(
                {
                    "family": family,
                    "n": n,
                    "cold_s": seconds,
                    "again_s": warm,
                    "same": again is operator,
                    "residual": residual,
                }
            )
    report(rows, options.out / "build.csv", "build.py")


if __name__ == "__main__":
    main()
