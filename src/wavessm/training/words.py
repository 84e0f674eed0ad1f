"""Numbers as people read them, for progress bars and reports; any stage may use it."""

from __future__ import annotations


def clock(seconds: float, hours: bool = False) -> str:
    """A time as hours (where there are any, or always), minutes and seconds.

    >>> clock(75), clock(3700), clock(75, hours=True)
    ('1:15', '1:01:40', '0:01:15')
    """
    minutes, rest = divmod(round(seconds), 60)
    whole, minutes = divmod(minutes, 60)
    return f"{whole}:{minutes:02}:{rest:02}" if hours or whole else f"{minutes}:{rest:02}"
