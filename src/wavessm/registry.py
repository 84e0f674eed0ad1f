"""Names to things, with an error that helps when the name is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Generic, TypeVar

from wavessm.errors import OptionError, UnknownNameError

T = TypeVar("T")


def unknown_name(kind: str, name: object, known: Iterable[str]) -> UnknownNameError:
    """The error for `name`, offering the closest of the `known` names.

    >>> str(unknown_name("measure", "scald", ["scaled", "translated"]))
    "unknown measure 'scald': did you mean 'scaled'? Known: scaled, translated."
    """
    names = list(known)
    lower = {other.lower(): other for other in names}
    close = difflib.get_close_matches(str(name).lower(), lower, n=1, cutoff=0.6)
    hint = f": did you mean '{lower[close[0]]}'?" if close else "."
    listed = ", ".join(names) if len(names) <= 12 else ", ".join(names[:12]) + f", … ({len(names)} in all)"
    return UnknownNameError(f"unknown {kind} {name!r}{hint} Known: {listed}.")


class Registry(Generic[T]):
    """An ordered mapping from names to values of one kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str, value: T) -> None:
        if name in self._entries:
            raise OptionError(f"{self.kind} {name!r} is already registered; choose another name.")
        self._entries[name] = value

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise unknown_name(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def names(self) -> list[str]:
        return list(self._entries)
