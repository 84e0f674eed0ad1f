"""Commands that the lab adds to `wavessm`."""

COMMANDS = {
    "sweep": (
        "wavessm_lab.cli.sweep",
        "a grid of runs side by side: variants × tasks × horizons × seeds, into one table",
    ),
    "figures": ("wavessm_lab.cli.figures", "the figures and studies of the paper, each with its data"),
    "explore": ("wavessm_lab.cli.explore", "a page in the browser: frames, operators, memories and runs to look at"),
    "report": ("wavessm_lab.cli.report", "a CSV of runs as tables and plots beside the paper's numbers"),
    "data generate": ("wavessm_lab.cli.generate", "draw ListOps, Pathfinder or Path-X by their published rules"),
}
"""Name → (module with a function `main`, line of help); `wavessm.cli` reads it through an entry point."""
