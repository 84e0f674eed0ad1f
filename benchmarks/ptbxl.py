"""Training throughput of the PTB-XL model, ours against the same model built from official S4 blocks.

    python benchmarks/ptbxl.py --out results/engine [--s4 PATH]

Six bidirectional blocks of 256 features and 64 states with batch norm before each and dropout 0.1, mean pooling, 5
labels, batches of 64 random cases of 12 leads and 1000 samples on the device, AdamW, TF32 products in all linear
layers. A step is forward, backward and optimiser. S4's CUDA extension is used if it was built in the checkout.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from common import arguments, find_device, machine, mean_ms, report
from peers import s4_step
from wavessm import ModelConfig
from wavessm.cli.bench import synthetic_step
from wavessm.training import TrainConfig


def our_step(family: str, precision: str, graphs: bool, size: dict[str, int], device: torch.device) -> Callable:
    """One training step of our model on random cases."""
    model = ModelConfig(
        family=family, d_model=size["d_model"], d_state=size["d_state"], n_layers=size["n_layers"],
        norm="batch", bidirectional=True, dropout=0.1,
    )  # fmt: skip
    config = TrainConfig(batch_size=size["batch"], precision=precision, cuda_graphs=graphs, device=device.type)
    return synthetic_step(model, config, device, (1000, 12, 5))


def main() -> None:
    parser = arguments(__doc__, "results/engine")
    parser.add_argument("--s4", type=Path, help="a checkout of state-spaces/s4")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script on a CPU")
    options = parser.parse_args()
    device = find_device()
    size = {"d_model": 256, "d_state": 64, "n_layers": 6, "batch": 64}
    if options.tiny:
        size = {"d_model": 8, "d_state": 8, "n_layers": 1, "batch": 2}
    made: dict[tuple[str, str, str], Callable[[], Callable]] = {}
    for family in ("db6", "legs"):
        for precision in ("tf32", "bf16"):
            for graphs in (False, True) if device.type == "cuda" else (False,):
                key = f"wavessm {family}", precision, "CUDA graph" if graphs else "eager"
                made[key] = lambda f=family, p=precision, g=graphs: our_step(f, p, g, size, device)
    if options.s4 is not None:
        made["s4 dplr legs", "tf32", "eager"] = lambda: s4_step(options.s4, size, (1000, 12, 5), device)
    rows = []
    for (name, precision, how), make in made.items():
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high")
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            ms = mean_ms(make(), device, 3 if options.tiny else 40)
        except (RuntimeError, ValueError) as reason:
            print(f"{name}, {precision}, {how}: failed: {str(reason).splitlines()[0]}", flush=True)
            continue
        peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else float("nan")
        row = {
            "model": name,
            "precision": precision,
            "step": how,
            "step_ms": ms,
            "cases_per_s": 1e3 * size["batch"] / ms,
        }
        rows.append({**row, "peak_gib": peak, **size, **machine(device)})
        print(f"{name}, {precision}, {how}: {ms:.2f} ms", flush=True)
    report(rows, options.out / "ptbxl.csv", "ptbxl.py")


if __name__ == "__main__":
    main()
