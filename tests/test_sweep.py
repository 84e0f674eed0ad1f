"""Sweeps: the grid, the table that many processes append to, and runs side by side that survive a kill."""

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

import wavessm as ws
from contracts import check_mistake
from miniatures import table
from wavessm.cli import main
from wavessm.cli import train as train_command
from wavessm.errors import MissingExtraError
from wavessm.training import checkpoint
from wavessm_lab.cli import sweep as command
from wavessm_lab.sweep import job as jobs
from wavessm_lab.sweep import results
from wavessm_lab.sweep.grid import Grid, expand
from wavessm_lab.sweep.job import SweepPaths
from wavessm_lab.sweep.run import SweepState, start_server

TINY = ["--length", "32", "--d-min", "2", "--d-max", "2", "--cases", "4", "--cases-per-epoch", "4", "--d-model", "4",
        "--n-layers", "1", "--d-state", "8", "--batch-size", "4", "--device", "cpu"]  # fmt: skip
COLUMNS = (
    "task,dataset,horizon,variables,model,family,measure,structure,recipe,seed,epochs,params,split,metric,value,"
    "ci_low,ci_high,train_seconds,gpu,versions,command,status"
)


def rows_of(path):
    return table(path.read_text())


def jobs_of(count):
    grid = Grid(("window-copy",), seeds=tuple(range(count)), options=(*TINY, "--steps", "2"))
    return expand(grid)


# -- the grid ---------------------------------------------------------------------------------------------------------


def test_a_grid_is_the_product_of_the_axes_that_a_task_has():
    grid = Grid(
        tasks=("forecast:ETTh1", "forecast:Weather", "window-copy"),
        variants=("morlet", "db6:translated:dplr", "legs"),
        horizons=(24, 48),
        seeds=(0, 1),
        variables=("uni", "multi"),
    )
    jobs = expand(grid)
    assert len(jobs) == 2 * 2 * 2 * 3 * 2 + 3 * 2
    assert len({job.name for job in jobs}) == len(jobs)
    last = [job for job in jobs if job.task == "forecast"][-1]
    assert (last.data["dataset"], last.data["horizon"], last.data["variables"]) == ("WTH", 48, "multi")
    assert (last.model.family, last.config.seed) == ("legs", 1)
    exact = next(job for job in jobs if job.model.structure)
    assert (exact.model.family, exact.model.measure) == ("db6", "translated")


def test_the_command_of_a_job_is_the_job():
    grid = Grid(("forecast:ETTh1",), ("gauss:translated", "s4d-lin"), (24, 168), (3,), ("paper", "best"),
                vary=("lr=0.01,0.002",), options=("--batch-size", "7"))  # fmt: skip
    jobs = expand(grid)
    assert len(jobs) == 2 * 2 * 2 * 2
    for job in jobs:
        words = shlex.split(job.command)
        assert words[:2] == ["wavessm", "train"]
        given = train_command.read(words[2:])
        assert given.task == job.task
        recipe = words[words.index("--recipe") + 1]
        other = "" if given.config.lr == 0.01 and recipe == "paper" else f"+lr={given.config.lr}"
        assert given.recipe_name == f"{recipe}{other}+batch_size=7", "not to be taken for the plain recipe's"
        assert (given.model, given.config, given.data) == (job.model, job.config, job.data)
        assert given.recipe_name == job.recipe_name


def test_lists_are_separated_by_commas():
    line = ["--tasks", "window-copy", "--variants", "morlet,legs", "--seeds", "0,1", "--vary", "windows=1,2"]
    assert len(expand(command.read([*line, "--", *TINY])[1])) == 8


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--variants", "morlet"], "no tasks"),
        (["--tasks", "window-kopie"], "did you mean 'window-copy'"),
        (["--tasks", "window-copy:ETTh1"], "no data sets to choose from"),
        (["--tasks", "forecast:ETTh9"], "unknown forecasting set 'ETTh9': did you mean"),
        (["--tasks", "window-copy", "--seeds", "0,x"], "--seeds does not take ['0', 'x']"),
        (["--tasks", "window-copy", "--variants", "a:b:c:d"], "expected family, family:measure"),
        (["--tasks", "window-copy", "--variants", "morlot"], "did you mean 'morlet'"),
        (["--tasks", "window-copy", "--variants", "morlet:scald"], "did you mean 'scaled'"),
        (["--tasks", "window-copy", "--vary", "lr"], "as in windows=2,4"),
        (["--tasks", "window-copy", "--", "--stepz", "3"], "did you mean --steps"),
        (["--tasks", "window-copy", "--jobs", "0"], "expected at least 1"),
        (["--tasks", "window-copy", "--", "--recipe", "paper"], "--recipe is decided by --recipes; give it there"),
        (["--tasks", "window-copy", "--vary", "seed=1,2"], "--seed is decided by --seeds"),
        (["--tasks", "window-copy", "--", "--family", "db6"], "--family is decided by --variants"),
        (["--tasks", "window-copy", "--horizons", "24"], "horizons are given, but window-copy has none"),
        (["--resume", "nowhere"], "not the folder of a sweep"),
        (["--resume", "nowhere", "--seeds", "1"], "as it was; leave out --seeds"),
        (["--resume", "nowhere", "--", "--lr", "1"], "as it was; leave out --"),
    ],
)
def test_mistakes_are_one_line_before_anything_runs(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    check_mistake(["sweep", *arguments], words, capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kept", ["{", "{}", "[]", '{"grid": 1}'])
def test_a_broken_sweep_is_one_line(tmp_path, capsys, kept):
    (tmp_path / "sweep.json").write_text(kept)
    words = "not written by `wavessm sweep`; start the sweep again with its first command.\n"
    check_mistake(["sweep", "--resume", str(tmp_path)], words, capsys)


# -- the table --------------------------------------------------------------------------------------------------------


def append_many(path, who, count, together):
    for number in range(count):
        together.wait(60)
        own, shared = ({"command": f"{name} {number}", "status": "ok"} for name in (who, "all"))
        results.append(path, [own, shared])


def test_many_processes_append_every_row_once(tmp_path):
    context = start_server()
    path = tmp_path / "runs.csv"
    together = context.Barrier(3)
    writers = [context.Process(target=append_many, args=(path, who, 12, together)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert path.read_text().splitlines()[0] == COLUMNS
    commands = [row["command"] for row in rows_of(path)]
    assert sorted(commands) == sorted([f"{who} {n}" for who in (*range(3), "all") for n in range(12)])


def test_a_line_cut_short_is_taken_off(tmp_path):
    path = tmp_path / "runs.csv"
    results.append(path, [{"command": "a", "status": "ok"}])
    with path.open("a") as file:
        file.write('window-copy,,,"half a')
    results.append(path, [{"command": "b", "status": "failed: two\nlines"}])
    assert [(row["command"], row["status"]) for row in rows_of(path)] == [("a", "ok"), ("b", "failed: two lines")]


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"a,b\n1,2", b"one line", b"caf\xe9;x\n1;2"])
def test_another_table_is_neither_appended_to_nor_mended(tmp_path, content):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(ws.WaveSSMError, match="not those of a table of runs"):
        results.append(tmp_path / "x.csv", [{"command": "a"}])
    assert (tmp_path / "x.csv").read_bytes() == content


def test_a_header_cut_short_is_begun_again(tmp_path):
    (tmp_path / "x.csv").write_text("task,datas")
    results.append(tmp_path / "x.csv", [{"command": "a", "status": "ok"}])
    assert [row["command"] for row in rows_of(tmp_path / "x.csv")] == ["a"]


# -- runs -------------------------------------------------------------------------------------------------------------


def test_runs_killed_and_resumed_have_a_row_each(tmp_path):
    out = tmp_path / "sweep"
    grid = ["--tasks", "window-copy", "--variants", "morlet,legs", "--seeds", "0,1,2"]
    line = [sys.executable, "-m", "wavessm", "sweep", *grid, "--jobs", "2", "--out", str(out), "--quiet", "--"]
    line += [*TINY, "--steps", "4", "--save-seconds", "0"]
    sweep = subprocess.Popen(line)
    deadline = time.monotonic() + 120
    while not (out / "runs.csv").exists() or len(rows_of(out / "runs.csv")) < 2:
        assert sweep.poll() is None, "it must be killed before it ends"
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sweep.kill()
    assert sweep.wait() == -signal.SIGKILL
    assert len(rows_of(out / "runs.csv")) < 6
    assert main(["sweep", "--resume", str(out), "--quiet"]) == 0
    rows = rows_of(out / "runs.csv")
    assert len(rows) == len({row["command"] for row in rows}) == 6
    assert {(row["model"], row["seed"]) for row in rows} == {(m, s) for m in ("WaveSSM", "S4-LegS") for s in "012"}
    for row in rows:
        assert [row[name] for name in ("task", "status", "split", "metric")] == [
            "window-copy", "ok", "test", "relative_mse",
        ]  # fmt: skip
        assert float(row["ci_low"]) <= float(row["ci_high"])
    assert len({row["value"] for row in rows}) == 6, "every run is its own"
    assert main(["sweep", "--resume", str(out), "--quiet"]) == 0
    assert rows_of(out / "runs.csv") == rows


def test_a_failed_run_is_written_down_and_the_others_go_on(tmp_path, capsys):
    line = ["sweep", "--tasks", "window-copy", "--variants", "mexhat:translated,s4d-lin:scaled:dplr"]
    line += ["--seeds", "0,1", "--jobs", "2"]
    line += ["--out", str(tmp_path / "s"), "--csv", str(tmp_path / "t.csv"), "--scores", "all", "--", *TINY]
    assert main([*line, "--steps", "2"]) == 1
    said = capsys.readouterr()
    assert "2 finished, 0 running, 0 waiting, 2 failed" in said.out
    assert "0 finished, 2 running, 2 waiting, 0 failed" in said.err
    rows = rows_of(tmp_path / "t.csv")
    failed = [row for row in rows if row["status"] != "ok"]
    assert [row["model"] for row in failed] == ["S4D-Lin", "S4D-Lin"]
    assert all(row["status"].startswith("failed: ") and "measure" in row["status"] for row in failed)
    good = [row for row in rows if row["status"] == "ok"]
    assert {(r["split"], r["metric"], r["seed"]) for r in good} == {
        (split, metric, seed)
        for seed in "01"
        for split, metric in (("test", "mse"), ("test", "mae"), ("test", "relative_mse"), ("val", "relative_mse"))
    }
    assert {(row["measure"], row["structure"], row["epochs"]) for row in good} == {("translated", "diagonal", "2")}
    for row in good:
        if (row["split"], row["metric"]) == ("test", "mse"):
            job = next(
                j for j in (tmp_path / "s").glob("window*") if f"-s{row['seed']}-" in j.name and "mexhat" in j.name
            )
            result = json.loads((job / "result.json").read_text())
            assert float(row["value"]) == pytest.approx(result["test_mse"], rel=1e-5)
            assert json.loads((job / "run.json").read_text())["environment"]["command"] == row["command"]


def test_a_signal_to_the_whole_group_fails_no_run(tmp_path):
    out = tmp_path / "s"
    line = [sys.executable, "-m", "wavessm", "sweep", "--tasks", "window-copy", "--seeds", "0,1", "--jobs", "2"]
    line += ["--out", str(out), "--quiet", "--", *TINY, "--steps", "1000000", "--val-per-epoch", "0.1"]
    sweep = subprocess.Popen(line, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(list(out.glob("*/metrics.csv"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(sweep.pid, signal.SIGTERM)
    assert sweep.wait(60) == 130
    assert results.read(out / "runs.csv") == []
    assert len(list(out.glob("*/last.ckpt"))) == 2


def test_ctrl_c_lets_runs_save_and_leaves_them_for_later(tmp_path, capsys):
    out = tmp_path / "s"

    def press():
        deadline = time.monotonic() + 60
        while len(list(out.glob("*/metrics.csv"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    line = ["sweep", "--tasks", "window-copy", "--seeds", "0,1,2", "--jobs", "2", "--out", str(out), "--quiet", "--"]
    assert main([*line, *TINY, "--steps", "1000000", "--save-seconds", "1e9", "--val-per-epoch", "0.1"]) == 130
    presser.join()
    said = capsys.readouterr()
    assert "0 finished, 0 running, 3 waiting, 0 failed" in said.out
    assert "resume with: wavessm sweep --resume" in said.err
    assert results.read(out / "runs.csv") == []
    steps = [checkpoint.load(path)["step"] for path in out.glob("*/last.ckpt")]
    assert len(steps) == 2
    assert min(steps) >= 10
    assert not list(out.glob("*/result.json"))


def test_a_second_sweep_in_the_same_folder_is_refused(tmp_path, capsys):
    with FileLock(tmp_path / "sweep.lock"):
        assert main(["sweep", "--tasks", "window-copy", "--out", str(tmp_path), "--quiet", "--", *TINY]) == 2
    assert "a sweep is running there" in capsys.readouterr().err


def test_a_resumed_sweep_keeps_its_table_and_takes_other_jobs(tmp_path, monkeypatch):
    asked = []

    def engine(given, state, planned):
        asked.append((state.paths.csv.resolve(), given.jobs))
        return types.SimpleNamespace(run=lambda screen: None)

    monkeypatch.setattr(command, "_engine", engine)
    (tmp_path / "elsewhere").mkdir()
    line = ["sweep", "--tasks", "window-copy", "--jobs", "3", "--quiet"]
    for own, name in ([], "s/runs.csv"), (["--csv", "own.csv"], "own.csv"):
        monkeypatch.chdir(tmp_path)
        main([*line, "--out", "s", *own])
        monkeypatch.chdir(tmp_path / "elsewhere")
        main(["sweep", "--resume", "../s", "--quiet"])
        main(["sweep", "--resume", "../s", "--quiet", "--jobs", "1"])
        main(["sweep", "--resume", "../s", "--quiet"])
        assert asked == [(tmp_path / name, jobs) for jobs in (3, 3, 1, 1)]
        asked.clear()


def test_the_state_tells_what_runs_waits_and_failed(tmp_path):
    first, second, third = jobs_of(3)
    state = SweepState.of([first, second, third], SweepPaths(tmp_path, tmp_path / "runs.csv"))
    state.start(first)
    state.start(second)
    state.end(second.name, -signal.SIGKILL)
    assert state.summary() == "0 finished, 1 running, 1 waiting, 1 failed"
    (row,) = results.read(tmp_path / "runs.csv")
    assert row["status"] == "failed: its process ended by SIGKILL (out of memory?)"
    assert row["command"] == second.command
    again = SweepState.of([first, second, third], state.paths, retry=True)
    assert len(again.waiting) == 3


# -- Ray --------------------------------------------------------------------------------------------------------------


def fake_ray(monkeypatch, broken):
    """Stands for Ray where it is not installed: works in this process, and loses the worker of seed `broken`."""

    class RayError(Exception):
        pass

    class Remote:
        def __init__(self, work):
            self.work = work

        def remote(self, job, paths):
            return lambda: self.answer(job, paths)

        def answer(self, job, paths):
            if job.config.seed == broken:
                raise RayError("The worker died unexpectedly.\nmore")
            return 0

    ray = types.ModuleType("ray")
    ray.exceptions = types.SimpleNamespace(RayError=RayError)
    ray.is_initialized = lambda: True
    ray.remote = lambda **resources: Remote
    ray.wait = lambda answers, timeout: (answers[:1], answers[1:])
    ray.get = lambda answer: answer()
    monkeypatch.setitem(sys.modules, "ray", ray)


def test_jobs_handed_to_ray_end_up_on_the_board(tmp_path, monkeypatch):
    from wavessm_lab.sweep.ray import OnRay

    fake_ray(monkeypatch, broken=1)
    jobs = jobs_of(3)
    state = SweepState.of(jobs, SweepPaths(tmp_path, tmp_path / "runs.csv"))
    OnRay(state, 2, 0).run(lambda state: None)
    assert [job.config.seed for job in state.finished] == [0, 2]
    assert state.failed == {jobs[1].name: "The worker died unexpectedly."}


def test_ray_is_an_extra(tmp_path, monkeypatch):
    from wavessm_lab.sweep.ray import OnRay

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"wavessm-lab\[ray\]"):
        OnRay(SweepState(SweepPaths(tmp_path, tmp_path / "runs.csv"), []), 2, 0)


def test_a_log_is_given_back_by_a_process_that_lives_on(tmp_path):
    def free():
        try:
            with FileLock(tmp_path / "log.lock", timeout=0):
                return True
        except Timeout:
            return False

    with jobs.owned(tmp_path / "log"):
        os.write(1, b"said")
        assert not free()
    os.write(1, b"elsewhere")
    assert free()
    assert (tmp_path / "log").read_text() == "said"


def workers_on(log):
    """Processes whose output goes to a log: Ray's own list of workers needs more than the extra."""
    found = []
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if output.readlink() == log:
                found.append(int(output.parts[2]))
    return found


@pytest.fixture
def local_ray(monkeypatch):
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # no token in the home folder
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


def test_a_worker_of_ray_killed_in_the_middle_has_its_run_go_on(tmp_path, local_ray):
    from wavessm_lab.sweep.ray import OnRay

    first, second = jobs_of(2)
    long = dataclasses.replace(first, config=dataclasses.replace(first.config, steps=150, save_seconds=0))
    paths = SweepPaths(tmp_path, tmp_path / "runs.csv")
    state = SweepState.of([long, second], paths)
    killed: list[int] = []
    before: list[dict[str, str]] = []

    def kill_once(state):
        path = paths.run(long) / "metrics.csv"
        if not killed and path.exists() and len(rows_of(path)) > 2:
            before.extend(rows_of(path)[:-1])  # the last may be newer than the checkpoint
            killed.extend(workers_on(paths.log(long)))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    OnRay(state, 2, 0).run(kill_once)
    assert len(killed) == 1
    assert 1 < len(before) < 149
    rows = results.read(paths.csv)
    assert {row["command"] for row in rows} == {long.command, second.command}
    assert [row["status"] for row in rows] == ["ok", "ok"]
    assert len(state.finished) == 2
    validations = rows_of(paths.run(long) / "metrics.csv")
    assert [int(row["step"]) for row in validations] == list(range(1, 151))
    assert validations[: len(before)] == before, "it went on where it was, and did not begin again"
    assert workers_on(paths.log(long)) == [], "a worker that lives on gives the log back"


def test_a_sweep_on_ray_that_is_asked_to_stop_lets_runs_save(tmp_path, local_ray):
    from wavessm_lab.sweep.ray import OnRay

    first, second = jobs_of(2)
    endless = dataclasses.replace(first, config=dataclasses.replace(first.config, steps=10**6, save_seconds=1e9))
    paths = SweepPaths(tmp_path, tmp_path / "runs.csv")
    state = SweepState.of([endless, second], paths)

    def press_once(state):
        if not state.stopped and (paths.run(endless) / "metrics.csv").exists():
            os.kill(os.getpid(), signal.SIGINT)

    OnRay(state, 1, 0).run(press_once)
    assert state.stopped
    assert [job.config.seed for job in state.waiting] == [1, 0]
    assert results.read(paths.csv) == []
    assert workers_on(paths.log(endless)) == []
    reached = len(rows_of(paths.run(endless) / "metrics.csv"))
    assert reached - 1 <= checkpoint.load(paths.run(endless) / "last.ckpt")["step"] <= reached + 1


def test_names_in_the_table_are_those_of_the_vocabulary():
    row = results.described("forecast", {"dataset": "WTH", "horizon": 24, "variables": "uni"}, "paper", 1)
    assert (row["dataset"], row["horizon"], row["variables"]) == ("Weather", 24, "uni")
    assert ",".join(results.COLUMNS) == COLUMNS
    assert jobs_of(1)[0].name.startswith("window-copy-")
