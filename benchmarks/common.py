"""What every benchmark shares: a timer that takes the best of several runs, and a labelled CSV."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wavessm.training.record import provenance, write_csv


def best_of(work: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the fastest run: what the machine can do when nothing else disturbs it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def report(rows: list[dict[str, Any]], path: Path, script: str) -> None:
    """Print the rows, write them as CSV and say beside it how they were made."""
    for row in rows:
        print("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()))
    write_csv(path, rows)
    path.with_suffix(".md").write_text(f"Made by {provenance(f'python benchmarks/{script}')}.\n")
    print(f"written: {path}")
