"""`wavessm figures`: the figures and studies of the paper from our own code."""

from __future__ import annotations


def main(arguments: list[str]) -> int:
    from wavessm_lab.studies.figures import main as draw

    return draw(arguments)
