"""The errors wavessm raises: what came, what was expected, what to do, in one line.

All of them are `ValueError`s, so code that knows nothing of wavessm can still catch them.
"""


class WaveSSMError(ValueError):
    """Base of every error raised on purpose by wavessm."""


class UnknownNameError(WaveSSMError):
    """A name that is not registered; the message offers the closest ones."""


class OptionError(WaveSSMError):
    """An option outside its range, or one that this object does not take."""


class ShapeError(WaveSSMError):
    """An array whose shape does not fit the call."""


class NotFiniteError(WaveSSMError):
    """NaN or infinity where a number was expected."""


class DataError(WaveSSMError):
    """A file or table that is missing, damaged or not what the loader reads; the message names it."""


class RankError(WaveSSMError):
    """Atoms that depend on each other, so that no dual frame exists."""


class ConditionError(WaveSSMError):
    """A change of coordinates too ill-conditioned to mean anything."""


class MissingExtraError(WaveSSMError, ImportError):
    """A feature whose optional dependency is not installed."""
