"""Projecting a long signal in closed form against stepping through it in Python.

    python benchmarks/memory.py --out results/memory

Correctness first: `project` against a float64 zero-order-hold recurrence, compared a thousand times along the whole
signal (operators that do not diagonalise: over its first two thousand samples), must agree to 1e-9. The peer is the
bilinear recurrence of HiPPO and SaFARi, as a NumPy loop, timed over a part of the signal in the same run (its cost a
sample does not depend on the position); for a sliding window its matrices are constant and made once, so that there
the loop is fast and less is to be won. Peak memory is that of the process.
"""

from __future__ import annotations

import resource

import numpy as np
import torch

import wavessm as ws
from common import arguments, best_of, report
from wavessm.memory import DenseFlow, recurrence

STEPS = 5000
CASES = (
    ("morlet", "scaled"),
    ("morlet", "translated"),
    ("db6", "scaled"),
    ("mexhat", "scaled"),
    ("legs", "scaled"),
    ("legt", "translated"),
)


def modal_recurrence(operator: ws.Operator, x: np.ndarray, window: float | None) -> np.ndarray:
    """Every thousandth of the states by a zero-order-hold loop over modes: float64, and nothing of `flows.py` in it."""
    form = operator.to_diagonal()
    lam, B, h = form.lam, form.B, np.zeros(operator.n, complex)
    every, kept = max(1, len(x) // 1000), []
    for k, u in enumerate(x):
        if window is None and k == 0:
            h = -B / lam * u
        else:
            z = lam * (1 / window if window else np.log1p(1 / k))
            held = np.expm1(z)
            h = h + held * h + np.where(lam == 0, z, held) / np.where(lam == 0, 1, lam) * B * u
        if (k + 1) % every == 0:
            kept.append(h)
    return form.from_coordinates(np.array(kept))


def main() -> None:
    parser = arguments(__doc__, "results/memory")
    parser.add_argument("--length", type=int, default=10**6)
    parser.add_argument("--n", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(2)
    x = np.random.default_rng(0).standard_normal(options.length)
    rows = []
    for family, measure in CASES:
        operator = ws.make_operator(family, measure=measure, n=options.n)
        window = None if measure == "scaled" else 10_000.0
        memory = ws.OnlineMemory(operator, window)
        states = memory.project(x)
        if isinstance(memory.flow, DenseFlow):
            count = min(2000, len(x))
            difference = np.abs(states[:count].numpy() - recurrence(operator, x[:count], window)).max()
        else:
            every = max(1, len(x) // 1000)
            difference = np.abs(states[every - 1 :: every].numpy() - modal_recurrence(operator, x, window)).max()
        if difference > 1e-9:
            raise SystemExit(f"{family}, {measure}: differs by {difference:.1e} from the recurrence, no time reported.")
        del states
        peer = best_of(lambda: recurrence(operator, x[:STEPS], window, "bilinear")) / STEPS * len(x)  # noqa: B023
        project = best_of(lambda: memory.project(x))  # noqa: B023
        push = best_of(lambda: (memory.reset(), memory.push(x)))  # noqa: B023
        rows.append(
            {
                "family": family,
                "measure": measure,
                "n": options.n,
                "samples": len(x),
                "error": float(difference),
                "bilinear_s": peer,
                "project_s": project,
                "push_s": push,
                "project_speedup": peer / project,
                "push_speedup": peer / push,
                "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            }
        )
    report(rows, options.out / "throughput.csv", "memory.py")


if __name__ == "__main__":
    main()
