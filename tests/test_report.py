"""Runs as tables beside the paper's: what counts as better, what stays empty, what is refused."""

import csv
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wavessm as ws
from wavessm.cli import main
from wavessm.training import auroc
from wavessm_lab.report.overview import overview
from wavessm_lab.report.paired import differences, frequent, pack
from wavessm_lab.report.runs import COLUMNS, Cell, Result, Variant, collect, paper, partner, read_runs, verdict
from wavessm_lab.report.tables import write_report


def row(**given):
    empty = dict.fromkeys(COLUMNS, "")
    common = {"split": "test", "status": "ok", "recipe": "best", "model": "wavessm", "epochs": "8"}
    return {**empty, **common, **{name: str(value) for name, value in given.items()}}


def written(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


ECG = {"task": "ptbxl-super-diag", "dataset": "PTB-XL", "metric": "auroc"}
ETT = {"task": "forecast", "dataset": "ETTh1", "horizon": 24, "variables": "uni", "metric": "mse"}
RUNS = [
    *(row(**ECG, family="db6", measure="scaled", seed=seed, value=0.935 + 0.001 * seed) for seed in range(3)),
    row(**ECG, family="legs", structure="dplr", seed=0, value=0.9312),
    row(**ETT, family="morlet", measure="scaled", seed=0, value=0.2),
    row(**ETT, model="last value", value=0.034),
    row(**ECG, family="dpss", seed=0, status="failed: NaN at step 12"),
    row(**ECG, family="gauss", seed=0, split="val", value=0.99),
]


def test_the_papers_tables_are_all_there():
    published = paper()
    assert sum(cell.task == "forecast" and cell.variables == "uni" for cell in published) == 25
    assert sum(cell.task.startswith("ptbxl") for cell in published) == 5
    cell = Cell("forecast", "ETTh1", "24", "uni", "mse")
    assert partner(cell, Variant("wavessm", "legs", "", "dplr", "best"), published)[1] == 0.061
    assert partner(cell, Variant("S4-LegS", "", "scaled", "dplr", "best"), published)[1] == 0.061
    assert partner(cell, Variant("last value", "", "", "", ""), published) is None
    assert partner(cell._replace(horizon="25"), Variant("wavessm", "legs", "", "", ""), published) is None


def test_a_seed_that_ran_twice_counts_once():
    rows = [row(**ECG, family="db6", seed=seed, value=value) for seed, value in ((0, 0.92), (0, 0.94), (1, 0.95))]
    (results,) = collect(rows).values()
    (result,) = results.values()
    assert result.values == (pytest.approx(0.93), 0.95)


def test_seeds_are_gathered_and_failures_left_out(tmp_path):
    results = collect(read_runs(written(tmp_path / "runs.csv", RUNS)))
    db6 = results[Cell("ptbxl-super-diag", "PTB-XL", "", "", "auroc")][Variant("wavessm", "db6", "scaled", "", "best")]
    assert db6.mean == pytest.approx(0.936)
    assert db6.spread == pytest.approx(0.001)
    assert not any(variant.family in ("dpss", "gauss") for made in results.values() for variant in made)


def test_the_report_marks_better_and_worse_and_keeps_missing_cells(tmp_path):
    paths = write_report(written(tmp_path / "runs.csv", RUNS), tmp_path / "out")
    assert {path.name for path in paths} == {"report.md", "forecast.png", "ptbxl-super-diag.png"}
    text = (tmp_path / "out" / "report.md").read_text()
    assert "| wavessm db6 scaled (best) | 3 | 0.9360 ± 0.0010 | 0.932 | better |" in text
    assert "| wavessm legs dplr (best) | 1 | 0.9312 | 0.931 | within noise (one seed) |" in text
    assert "| wavessm morlet scaled (best) | 1 | 0.2000 | 0.077 | worse (one seed) |" in text
    assert "| wavessm mexhat translated |  |  | " in text, "what no run has met stays visible"
    assert "8 rows of runs.csv, 1 of them failed runs" in text
    assert "## retrieval, accuracy\n\n| variant | seeds | ours | paper | verdict |" in text, (
        "what was not run at all too"
    )
    assert text.count("## ptbxl-super-diag") == 1
    assert "| best published: MS-SSM |  |  | 0.935 |  |" in text
    assert "| best published: S5 |  |  | 0.986 |  |" in text, "of what was not run too"
    assert text.index("last value") < text.index("morlet scaled (best)"), "best first"


def test_the_overview_has_a_column_for_each_horizon_and_the_papers_best(tmp_path):
    rows = [
        row(**{**ETT, "horizon": horizon}, family="morlet", measure="scaled", seed=seed, value=value)
        for horizon, value in ((24, 0.01), (48, 0.5))
        for seed in (0, 1)
    ]
    rows.append(row(**{**ETT, "horizon": 48}, model="last value", recipe="baseline", value=0.05))
    pages = overview(collect(read_runs(written(tmp_path / "runs.csv", rows))), paper())
    assert len(pages) == 1
    name, head, lines = pages[0]
    assert (name, head) == ("forecast, ETTh1, univariate: mse", ["variant", "24", "48"])
    table = {line[0]: line[1:] for line in lines}
    assert table["wavessm morlet scaled (best)"] == ["0.010 ± 0.000 +", "0.500 ± 0.000 -"]
    assert table["last value (baseline)"] == ["", "0.050"], "what was not run stays empty"
    assert table["the paper's best"] == ["0.061", "0.079"]
    assert "## forecast, ETTh1, univariate: mse" in write_report(tmp_path / "runs.csv", tmp_path / "out")[0].read_text()


def test_scores_have_a_mean_over_the_columns_of_the_paper():
    ours = {"diag": 0.94, "form": 0.9, "all": 0.99}
    rows = [
        row(task=f"ptbxl-{labels}", metric="auroc", family="db6", measure="translated", seed=0, value=value)
        for labels, value in ours.items()
    ]
    rows.append(row(task="ptbxl-diag", metric="auroc", model="guessing", recipe="baseline", value=0.5))
    ((_, head, lines),) = overview(collect(rows), paper())
    assert head == ["variant", "all", "diag", "form", "mean"]
    means = {line[0]: line[-1] for line in lines}
    assert means["wavessm db6 translated (best)"] == "0.9200", "the paper has no column for all"
    assert means["guessing (baseline)"] == "", "it was not asked everywhere"
    assert lines[0][2:4] == ["0.9400 (-)", "0.9000 (-)"], "one seed, in brackets"
    assert lines[-1][:2] == ["best published", "0.941 S4, 2.5 s crops"]
    diag, form = (paper()[Cell(f"ptbxl-{labels}", "PTB-XL", "", "", "auroc")] for labels in ("diag", "form"))
    best = max((diag[variant] + form[variant]) / 2 for variant in diag)
    assert float(means["the paper's best"]) == pytest.approx(best, abs=5e-5), "of one variant, not of each column"
    assert best < (max(diag.values()) + max(form.values())) / 2


@given(st.floats(0.1, 0.9), st.floats(-0.2, 0.2), st.floats(1e-4, 0.05), st.sampled_from(["auroc", "mse"]))
def test_verdicts_are_symmetric(number, gain, spread, metric):
    """What is better for a score is worse for an error of the same size."""
    result = Result((number + gain - spread, number + gain, number + gain + spread))
    words = {name: verdict(name, result, number) for name in ("auroc", "mse")}
    opposite = {"better": "worse", "worse": "better", "within noise": "within noise"}
    assert words["mse"] == opposite[words["auroc"]]
    if abs(gain) > 2 * spread + 1e-3:
        assert words[metric] != "within noise"


def test_what_lies_within_the_interval_of_the_test_cases_is_no_difference():
    seeds = [row(**ECG, family="db6", seed=seed, value=0.927, ci_low=0.921, ci_high=0.933) for seed in (0, 1)]
    ((cell, made),) = collect(seeds).items()
    (result,) = made.values()
    assert result.by_cases == pytest.approx(0.006)
    assert [verdict(cell.metric, result, number) for number in (0.932, 0.934)] == ["within noise", "worse"]


def test_long_names_have_room_in_the_plot(tmp_path, recwarn):
    name = "best+" + "+".join(f"option_{number}={number}" for number in range(12))
    write_report(written(tmp_path / "runs.csv", [row(**{**ETT, "recipe": name}, value=1)]), tmp_path)
    assert not [str(warning.message) for warning in recwarn if "constrained" in str(warning.message)]


def test_bad_tables_get_one_line(tmp_path, capsys):
    path = tmp_path / "runs.csv"
    path.write_text("task,value\n")
    (tmp_path / "empty.csv").touch()
    for name in ("runs.csv", "empty.csv"):
        with pytest.raises(ws.WaveSSMError, match="its columns are not task,dataset,"):
            read_runs(tmp_path / name)
    with pytest.raises(ws.WaveSSMError, match="expected a number"):
        read_runs(written(path, [row(**ECG, value="high")]))
    with pytest.raises(ws.WaveSSMError, match="line 2: value is 'nan', expected a number"):
        read_runs(written(path, [row(**ECG, value="nan")]))
    with pytest.raises(ws.WaveSSMError, match="expected 'ok' or 'failed: reason'"):
        read_runs(written(path, [row(**ECG, value=1, status="done")]))
    with pytest.raises(ws.WaveSSMError, match="line 2: horizon is 'a day', expected a whole number"):
        read_runs(written(path, [row(**{**ETT, "horizon": "a day"}, value=1)]))
    with pytest.raises(ws.WaveSSMError, match="line 2: metric is 'joy', expected one of auroc, accuracy"):
        read_runs(written(path, [row(**{**ETT, "metric": "joy"}, value=1)]))
    whole = written(path, [row(**ETT, value=1)]).read_text()
    path.write_text(whole.rstrip("\n").rpartition(",")[0] + "\n")
    with pytest.raises(ws.WaveSSMError, match="line 2: has not 22 fields"):
        read_runs(path)
    path.write_bytes(b"\xff\xfe" + whole.encode("utf-16"))
    with pytest.raises(ws.WaveSSMError, match="not a text in UTF-8"):
        read_runs(path)
    path.write_text("\ufeff" + whole)  # as spreadsheets begin a file
    assert len(read_runs(path)) == 1
    with pytest.raises(ws.WaveSSMError, match="nothing to report yet"):
        write_report(written(path, []), tmp_path)
    assert main(["report", "--runs", str(tmp_path / "nowhere.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["missing.npz", "empty.npz"])
def test_predictions_that_cannot_be_read_are_one_line(tmp_path, name):
    (tmp_path / "empty.npz").touch()
    line = [sys.executable, "-m", "wavessm_lab.report.paired", str(tmp_path / name), "--against", "legs"]
    done = subprocess.run([*line, "--out", str(tmp_path)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert done.stderr.startswith(f"paired: {tmp_path / name}: ")
    assert done.stderr.count("\n") == 1


def test_paired_differences_leave_out_what_the_cases_do_to_both(tmp_path):
    random = np.random.default_rng(0)
    labels = random.random((400, 3)) < 0.4
    shared = labels + random.normal(size=labels.shape)
    runs = {"a": shared, "same": 2 * shared + 1, "worse": shared + random.normal(size=labels.shape)}
    for name, scores in runs.items():
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "test.npy", np.concatenate([scores, labels], axis=1))
    pack({name: tmp_path / name for name in runs}, tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        outputs = {name: file[name].astype(float) for name in runs}
        rows = {row["model"]: row for row in differences(outputs, file["labels"], "a", resamples=100)}
    assert rows["a"]["difference"] == rows["a"]["high"] == 0
    assert abs(rows["same"]["difference"]) < 1e-3
    assert rows["worse"]["high"] < 0
    assert rows["worse"]["better_in"] == 0
    with pytest.raises(ws.WaveSSMError, match="did you mean 'worse'"):
        differences(outputs, labels, "wors")
    np.save(tmp_path / "a" / "test.npy", np.concatenate([shared, ~labels], axis=1))
    with pytest.raises(ws.WaveSSMError, match="test cases of same are not those"):
        pack({name: tmp_path / name for name in runs}, tmp_path / "p.npz")


def test_a_class_of_one_case_counts_where_it_was_drawn():
    random = np.random.default_rng(2)
    labels = random.random((200, 3)) < 0.5
    labels[:, 2] = np.arange(200) == 7
    outputs = {"a": labels + random.normal(size=labels.shape), "b": labels + 0.0}
    (a, b) = differences(outputs, labels, "a", resamples=50)
    assert b["auroc"] == 1
    assert 0 < b["low"] < b["high"] < 1 - a["auroc"] + 0.2


def test_short_horizons_come_before_long_ones():
    rows = [
        row(**{**ETT, "horizon": horizon, "metric": metric}, value=1)
        for horizon in (168, 24)
        for metric in ("mse", "mae")
    ]
    order = [(cell.metric, cell.horizon) for cell in collect(rows)]
    assert order == [("mae", "24"), ("mae", "168"), ("mse", "24"), ("mse", "168")]


def test_rare_classes_are_left_out_when_asked():
    random = np.random.default_rng(3)
    labels = random.random((200, 3)) < 0.5
    labels[:, 2] = np.arange(200) == 7
    outputs = {"a": labels + random.normal(size=labels.shape)}
    scores, kept = frequent(outputs, labels, 10)
    assert kept.shape == (200, 2)
    (a,) = differences(scores, kept, "a", resamples=10)
    assert a["auroc"] == pytest.approx(auroc(outputs["a"][:, :2], labels[:, :2]).mean())
    with pytest.raises(ws.OptionError, match="no class has 1000 test cases"):
        frequent(outputs, labels, 1000)


def test_seeds_widen_the_interval_of_a_difference():
    random = np.random.default_rng(1)
    labels = random.random((300, 2)) < 0.5
    signal = labels + random.normal(size=labels.shape)
    noise = [random.normal(size=labels.shape) for _ in range(3)]
    outputs = {f"a-s{k}": signal + 0.1 * noise[k] for k in range(3)}
    outputs |= {f"b-s{k}": signal + (0.0, 0.8, 2.5)[k] * noise[k] for k in range(3)}
    rows = {row["model"]: row for row in differences(outputs, labels, "a", resamples=200)}
    one = {row["model"]: row for row in differences({k: outputs[k] for k in ("a-s1", "b-s1")}, labels, "a", 200)}
    assert rows["b"]["seeds"] == 3
    assert rows["b"]["deviation"] > rows["a"]["deviation"]
    assert rows["b"]["high"] - rows["b"]["low"] > 2 * (one["b"]["high"] - one["b"]["low"])
