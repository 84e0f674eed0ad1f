"""`wavessm explore`, a local page that shows frames, operators, memories and runs.

Read `state.py` (what is chosen, and its link), `allowed.py` (which files may be read), `signals.py`, `study.py`
(everything about a family), `stream.py` (a signal in its memory), `runs.py`; then what is drawn (`figures.py`,
`run_figures.py`), the lines that compute it (`lines.py`), the page (`page.py`) and its callbacks (`app.py`). Only the
last two know Dash; figures are plain dictionaries in Plotly's format.
"""

from wavessm.errors import MissingExtraError

try:
    import dash  # noqa: F401
except ImportError as reason:
    raise MissingExtraError("the page needs Dash: pip install 'wavessm-lab'.") from reason
