"""Stage 8i: the learning curves of one run as a figure."""

from __future__ import annotations

from pathlib import Path

from wavessm.training.record import pyplot


def draw_curves(rows: list[dict[str, float]], score: str, path: Path) -> None:
    """Training loss on the left, the validation score that selects on the right, both over steps."""
    if not rows:
        return
    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6))
    steps = [row["step"] for row in rows]
    left.plot(steps, [row["train_loss"] for row in rows], marker=".")
    left.set(xlabel="step", ylabel="training loss")
    right.plot(steps, [row[f"val_{score}"] for row in rows], marker=".", color="C1")
    right.set(xlabel="step", ylabel=f"validation {score.replace('_', ' ')}")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
