"""Everything that is chosen on the page, as one value, and the link that brings it back.

A link is a query string that holds what differs from the defaults: `?view=memory&family=db6&n=96`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode

from wavessm.errors import OptionError, WaveSSMError, unknown_name
from wavessm.operators import MEASURES

VIEWS = {"frame": "Frame", "operator": "Operator", "memory": "Memory", "runs": "Runs"}
MOST_ATOMS = 256
FILE = "file:"
"""Before a path, where a family or a signal is the content of a file."""
RANGES = {"n": (2, MOST_ATOMS), "channel": (0, 10**6), "window": (0.01, 1), "time": (0, 1), "low": (1e-3, 1e4),
          "high": (1e-3, 1e4)}  # fmt: skip
USUAL_SPAN = (0.5, 16.0)
"""f_min and f_max where only the other one is given."""


@dataclass(frozen=True)
class State:
    """What the page shows.

    family, other  names of `ws.families()`, or file:PATH with atoms; other is the second one, "" for none
    low, high      f_min and f_max in cycles per window; None leaves them to the library
    signal         a built-in one or file:PATH; channel counts from 0
    window         of a translated memory, as a share of the signal
    time           share of the signal that has been processed, 0 to 1
    mask           share of the coordinates, in the order of the page, that is masked: from, to in percent
    also           further coordinates to mask, as in "3, 17-20"
    predict        "" or "test", cases of the run's test split
    """

    view: str = "frame"
    family: str = "morlet"
    other: str = ""
    n: int = 64
    measure: str = "scaled"
    low: float | None = None
    high: float | None = None
    signal: str = "ecg"
    channel: int = 0
    window: float = 0.5
    time: float = 1.0
    mask: tuple[float, float] = (0.0, 0.0)
    also: str = ""
    run: str = ""
    predict: str = ""

    def check(self) -> State:
        """Return the state itself, or raise `OptionError` about the first value that is out of range."""
        for what, value, known in (
            ("view", self.view, VIEWS),
            ("measure", self.measure, MEASURES),
            ("predict", self.predict, ("", "test")),
        ):
            if value not in known:
                raise unknown_name(what, value, known)
        for name, (least, most) in RANGES.items():
            if (value := getattr(self, name)) is not None:
                _between(name, value, least, most)
        _between("mask", self.mask[0], 0, self.mask[1])
        _between("mask", self.mask[1], self.mask[0], 100)
        coordinates(self.also)
        return self

    def to_link(self) -> str:
        """Return the query string of what differs from the defaults.

        >>> State(view="memory", n=96, mask=(10, 30)).to_link()
        '?view=memory&n=96&mask=10-30'
        """
        given = {
            field.name: _text(value)
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) != field.default
        }
        return "?" + urlencode(given, safe=":/,") if given else ""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> State:
        """Return the state of the page's controls; an empty control stands for its default."""
        usual: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(cls)}
        given = {name: read_value(name, value, usual[name]) for name, value in values.items() if value is not None}
        return cls(**{**usual, **given}).check()

    @classmethod
    def from_link(cls, search: Any) -> tuple[State, str]:
        """Return the state of a link, and one line about a part that could not be used, or "".

        >>> State.from_link("?n=32&measure=scald")
        (State(view='frame', ..., n=32, measure='scaled', ...), "link: unknown measure 'scald': did you mean...")
        """
        if not isinstance(search, str | None):
            return cls(), f"link: {type(search).__name__}, expected text as in ?view=memory&n=96."
        state, complaint = cls(), ""
        usual: dict[str, Any] = {field.name: field.default for field in dataclasses.fields(cls)}
        for name, text in parse_qsl((search or "").removeprefix("?"), keep_blank_values=True):
            try:
                if name not in usual:
                    raise unknown_name("part", name, usual)
                value = read_value(name, text, usual[name])
                state = dataclasses.replace(state, **{name: value}).check()
            except WaveSSMError as reason:
                complaint = complaint or f"link: {reason}"
        if (state.low is None) != (state.high is None):
            state = dataclasses.replace(state, low=state.low or USUAL_SPAN[0], high=state.high or USUAL_SPAN[1])
        return state, complaint


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "-".join(f"{part:.12g}" for part in value)
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def read_value(name: str, value: Any, usual: Any) -> Any:
    """Return a value as the type of its default; text is read."""
    try:
        if isinstance(usual, str):
            return str(value)
        if isinstance(usual, tuple):
            first, second = value.split("-") if isinstance(value, str) else value
            return float(first), float(second)
        number = float(value)
        if not isinstance(usual, int):
            return number
        if number != int(number):
            raise ValueError
        return int(number)
    except (TypeError, ValueError, OverflowError):
        kind = "two numbers as in 10-30" if isinstance(usual, tuple) else "a number"
        raise OptionError(f"{name} is {value!r}, expected {kind}.") from None


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(f"{name} is {value:g}, expected {low:g} to {high:g}.")


def coordinates(text: str) -> list[int]:
    """Return the indices of a list such as "3, 17-20".

    >>> coordinates("3, 17-20")
    [3, 17, 18, 19, 20]
    """
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)) or len(part) > 20:
            raise OptionError(f"coordinates: {part!r} is no index; write them as in '3, 17-20'.")
        found.update(range(int(first), min(int(last or first), MOST_ATOMS) + 1))
    return sorted(found)
