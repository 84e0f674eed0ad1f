"""Tasks by name: light to list, strict about options, open to other packages."""

import subprocess
import sys

import pytest

from contracts import check_mistake
from wavessm.cli import main
from wavessm.data import get_task, load, tasks
from wavessm.errors import OptionError, UnknownNameError

TOY = '''
from dataclasses import dataclass

from wavessm.data import DataOptions, Recipe, Task


@dataclass(frozen=True)
class ToyOptions(DataOptions):
    """Noise with a mean of -1 or 1."""

    cases: int = 8
    """Cases of each split."""

    def load(self, seed):
        import torch

        from wavessm.data import Arrays, DataInfo, DataSet

        def split(seed):
            y = torch.arange(self.cases) % 2
            noise = torch.randn(self.cases, 9, 1, generator=torch.Generator().manual_seed(seed))
            return Arrays(noise + 2.0 * y[:, None, None] - 1, y)

        info = DataInfo("multiclass", 1, 2, 9, classes=("low", "high"))
        return DataSet("toy", split(seed), split(seed + 1), split(seed + 2), info)


RECIPE = Recipe({"d_model": 4, "n_layers": 1, "d_state": 4}, {"steps": 2, "batch_size": 4, "device": "cpu"})
TASKS = (Task("toy", ToyOptions(), {"best": RECIPE}, help="a toy"),)
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A package with a task of its own, as pip would install it."""
    (tmp_path / "toy_tasks.py").write_text(TOY)
    about = tmp_path / "toy_tasks-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-tasks\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[wavessm.tasks]\ntoy = toy_tasks\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("toy_tasks", None)


def test_another_package_adds_a_task_that_the_command_line_trains(toy, tmp_path, capsys):
    assert tasks()["toy"] == "a toy"
    assert len(load("toy", cases=6).train) == 6
    assert main(["train", "toy", "--cases", "12", "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert "test: " in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    check_mistake(["train", "toy", "--casses", "12"], "did you mean --cases?", capsys)


def test_tasks_and_their_options_are_known_without_torch():
    code = (
        "import sys; from wavessm.data.task import get_task, modules, tasks; "
        "assert all(get_task(name).help == about for name, about in tasks().items()); "
        "assert {task.name for module in modules() for task in module.TASKS} == {*tasks()}; "
        "heavy = [name for name in ('torch', 'pandas') if name in sys.modules]; "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_options_of_before_are_understood_and_unknown_ones_refused():
    forecast = get_task("forecast").with_options({"seq_len": 96, "timeenc": 3, "eval_stamp": True})
    assert (forecast.context, forecast.calendar, forecast.future_calendar) == (96, "waves-year", True)
    assert get_task("ptbxl-all").with_options({"hz": 500}).sampling_rate == 500
    assert get_task("text").with_options({"least": 3}).min_count == 3
    assert get_task("window-copy").with_options({"epoch": 7}).cases_per_epoch == 7
    for name, values, message in (
        ("forecast", {"horizn": 3}, "unknown option of forecast 'horizn': did you mean 'horizon'"),
        ("forecast", {"calendar": "wave"}, "unknown calendar 'wave': did you mean 'waves'"),
        ("csv", {"horizon": 0}, "horizon is 0, expected at least 1"),
    ):
        with pytest.raises((OptionError, UnknownNameError), match=message):
            get_task(name).with_options(values)
    with pytest.raises(UnknownNameError, match="did you mean 'forecast'"):
        get_task("forcast")
