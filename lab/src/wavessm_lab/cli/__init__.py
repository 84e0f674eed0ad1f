"""Commands that the lab adds to `wavessm`."""

COMMANDS = {
    "sweep": ("wavessm_lab.cli.sweep:main", "train a grid of variants × tasks × horizons × seeds, into one table"),
    "evaluate": ("wavessm_lab.cli.evaluate:main", "score a trained model, with confidence intervals"),
    "figures": ("wavessm_lab.cli.figures:main", "draw the figures and studies of the paper, each with its data"),
    "explore": ("wavessm_lab.cli.explore:main", "open a page in the browser: frames, operators, memories and runs"),
    "report": ("wavessm_lab.cli.report:main", "show a CSV of runs as tables and plots beside the paper's numbers"),
    "data generate": (
        "wavessm_lab.cli.generate:main",
        "generate ListOps, Pathfinder or Path-X by their published rules",
    ),
}
"""Name → ("module:function", line of help); `wavessm.cli` reads it through an entry point."""
