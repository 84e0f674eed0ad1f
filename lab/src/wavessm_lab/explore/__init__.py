"""Stage 13: `wavessm explore`, a local page on which frames, operators, memories and runs can be looked at.

Read `state.py` (what is chosen, and its link), `shelf.py` (which files may be read), `signals.py`, `study.py` (all that
follows from a family), `stream.py` (a signal in its memory), `runs.py`; then what is drawn (`figures.py`,
`stream_figures.py`, `run_figures.py`), the lines that make it (`lines.py`), the page (`page.py`) and its callbacks
(`app.py`). Only the last two know Dash; figures are plain dictionaries in Plotly's format.
"""

from wavessm.errors import MissingExtraError

try:
    import dash  # noqa: F401
except ImportError as reason:
    raise MissingExtraError("the page needs Dash: pip install 'wavessm-lab'.") from reason
