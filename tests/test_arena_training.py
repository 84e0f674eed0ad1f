"""Speech Commands and the Long Range Arena from miniatures of their official layouts, trained by the command line."""

import json

import pytest
import torch

import miniatures
from contracts import check_mistake
from miniatures import load_listops
from wavessm import ModelConfig, SequenceModel
from wavessm.cli import main
from wavessm.data import Batch, DataInfo
from wavessm.training import Run, TrainConfig, decimate, model_config, predict_files, resolve
from wavessm.training.optimiser import optimiser_groups
from wavessm_lab.generate.listops import Grammar, generate_listops
from wavessm_lab.report.runs import read_runs

TINY = ["--d-model", "4", "--n-layers", "1", "--d-state", "8", "--device", "cpu", "--quiet", "--precision", "fp32"]
SHORT = Grammar(min_length=10, max_length=40)


def make_listops(root):
    generate_listops(root, sizes=(24, 8, 8), workers=1, grammar=SHORT)


LAYOUTS = {
    "listops": make_listops,
    "text": miniatures.aclimdb,
    "retrieval": miniatures.aan,
    "image": miniatures.cifar,
    "pathfinder": miniatures.pathfinder,
    "pathx": lambda root: miniatures.pathfinder(root, size=128, batches=1, per_batch=20),
    "speech": miniatures.speech,
}
EXTRA = {"text": ["--hold-out", "4"]}


@pytest.mark.parametrize("task", LAYOUTS)
def test_a_task_trains_from_its_official_layout_and_is_evaluated(task, tmp_path, capsys):
    LAYOUTS[task](tmp_path / "data")
    run = tmp_path / "run"
    words = ["train", task, str(tmp_path / "data"), "--recipe", "paper", *TINY, *EXTRA.get(task, [])]
    assert main([*words, "--steps", "2", "--batch-size", "4", "--out", str(run)]) == 0, capsys.readouterr().err
    result = json.loads((run / "result.json").read_text())
    assert result["task"] == task
    assert 0 <= result["test_accuracy"] <= 1
    losses = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    assert len(losses) > 1
    capsys.readouterr()
    assert main(["evaluate", str(run), "--device", "cpu"]) == 0
    assert "accuracy" in capsys.readouterr().out


def test_half_the_rate_is_heard_with_steps_twice_as_long(tmp_path, capsys):
    miniatures.speech(tmp_path / "data", words=30)
    run = tmp_path / "run"
    words = ["train", "speech", str(tmp_path / "data"), "--words", "30", *TINY]
    assert main([*words, "--steps", "1", "--batch-size", "4", "--out", str(run)]) == 0
    capsys.readouterr()
    for options, said in (
        (["--rate", "2"], "30 cases, model rate 2\n"),
        (["--sampling-rate", "8000"], "30 cases, model rate 2\n"),
        (["--rate", "2", "--antialias"], "30 cases, model rate 2, low-pass filtered\n"),
        (["--checkpoint", "last"], "30 cases\n"),
        (["--rate", "2"], "has scores of this command already and was left as it is"),
    ):
        assert main(["evaluate", str(run), *options, "--device", "cpu", "--csv", str(tmp_path / "runs.csv")]) == 0
        assert said in capsys.readouterr().out
    rows = read_runs(tmp_path / "runs.csv")
    heard = ["SC30 8 kHz", "SC30 8 kHz", "SC30 8 kHz low-pass", "SC30 16 kHz last checkpoint"]
    assert [row["dataset"] for row in rows] == heard
    recipe = rows[0]["recipe"]
    assert recipe.startswith("best+batch_size=4+steps=1+"), "what makes it another recipe"
    assert "words" not in recipe
    assert "data" not in recipe
    assert {(row["task"], row["split"], row["metric"]) for row in rows} == {("speech", "test", "accuracy")}
    assert rows[2]["command"].endswith("; wavessm evaluate RUN --rate 2 --antialias")
    assert main(["evaluate", str(run), "--antialias", "--device", "cpu"]) == 2
    # what the model hears then: every second scaled sample
    trained = Run.read(run)
    batch = trained.options.load(0).test.take(torch.arange(2))
    assert torch.equal(decimate(batch, 2).x, batch.x[:, ::2])
    assert decimate(batch, 2).x.shape[1] == 8000
    clip = tmp_path / "data" / "speech_commands_v0.01" / "bed" / "testing0_nohash_0.wav"
    row = predict_files(trained, [clip])[0]  # a short clip is heard at its own length
    assert sum(row[word] for word in miniatures.WORDS[30]) == pytest.approx(1, abs=1e-4)


def test_the_low_pass_keeps_what_half_the_rate_can_carry():
    t = torch.arange(2000.0)[None, :, None]
    low, high = torch.sin(2 * torch.pi * 0.1 * t), torch.sin(2 * torch.pi * 0.35 * t)
    heard = decimate(Batch(torch.cat([low + high, high], dim=2), torch.zeros(1)), 2, antialias=True).x[:, 50:-50]
    torch.testing.assert_close(heard[..., :1], low[:, 100:-100:2], atol=5e-3, rtol=0)
    assert heard[..., 1].abs().max() < 5e-3  # without the filter it would come back as another tone
    assert decimate(Batch(high, torch.zeros(1)), 2).x.abs().max() > 0.9


def test_tokens_have_no_sampling_rate_and_no_recordings(tmp_path, capsys):
    make_listops(tmp_path / "data")
    run = tmp_path / "run"
    words = ["train", "listops", str(tmp_path / "data"), *TINY, "--no-bidirectional"]
    assert main([*words, "--steps", "1", "--batch-size", "4", "--out", str(run)]) == 0
    check_mistake(["evaluate", str(run), "--rate", "2", "--device", "cpu"], "tokens and forecasts count steps", capsys)
    (tmp_path / "x.csv").write_text("1\n2\n3\n")
    check_mistake(["predict", str(run), str(tmp_path / "x.csv")], "listops reads tokens", capsys)


def test_training_learns_the_classes_of_a_miniature(tmp_path):
    miniatures.cifar(tmp_path / "data", per_batch=40)
    run = tmp_path / "run"
    words = ["train", "image", str(tmp_path / "data"), *TINY, "--d-model", "8", "--steps", "60", "--batch-size", "20"]
    assert main([*words, "--schedule", "one-cycle", "--lr", "0.02", "--val-per-epoch", "0.2", "--out", str(run)]) == 0
    result = json.loads((run / "result.json").read_text())
    assert result["test_accuracy"] > 0.3, "ten classes of brightness; 0.1 is chance"


# -- recipes --------------------------------------------------------------------------------------------------------

# layers, H, N, norm, pre-norm, dropout, lr, batch, epochs, weight decay; n_ssm, lr_ssm, warm-up, dt and C
PAPER = {
    "listops": (6, 256, 64, "batch", False, 0, 0.01, 50, 40, 0.05, 1, 0.001, 0.1, "global", "global"),
    "text": (6, 256, 64, "batch", True, 0, 0.01, 16, 32, 0.05, 1, 0.001, 0.1, "global", "global"),
    "retrieval": (6, 256, 64, "batch", True, 0, 0.01, 64, 20, 0.05, 1, 0.001, 0.1, "global", "global"),
    "image": (6, 512, 64, "layer", False, 0.1, 0.01, 50, 200, 0.05, 1, 0.001, 0.1, "ssm", "ssm"),
    "pathfinder": (6, 256, 128, "batch", True, 0, 0.001, 64, 200, 0.03, None, 0.001, 0.1, "ssm", "ssm"),
    "pathx": (6, 256, 128, "batch", True, 0, 0.0005, 32, 50, 0.05, None, 0.0005, 0.1, "ssm", "ssm"),
    "speech": (6, 128, 64, "batch", True, 0, 0.001, 16, 40, 0.05, 2, 0.001, 1000, "ssm", "global"),
}


@pytest.mark.parametrize("task", PAPER)
def test_paper_recipes_are_the_papers(task):
    m, r = resolve(task, "paper")
    found = (m.n_layers, m.d_model, m.d_state, m.norm, m.prenorm, m.dropout, r.lr, r.batch_size, r.epochs,
             r.weight_decay, m.n_ssm, r.lr_ssm, r.warmup, r.dt_rate, r.c_rate)  # fmt: skip
    assert found == PAPER[task]
    assert m.bidirectional
    assert (m.dt_min, m.dt_max) == (0.001, 0.1)
    assert r.schedule == "cosine"


@pytest.mark.parametrize(
    ("task", "cases", "steps"),
    [("listops", 96_000, 76_800), ("text", 25_000, 50_000), ("retrieval", 147_086, 46_000), ("image", 45_000, 180_000),
     ("pathfinder", 160_000, 500_000), ("pathx", 160_000, 250_000), ("speech", 84_843, 212_000)],
)  # fmt: skip
def test_epochs_make_the_published_steps(task, cases, steps):
    assert resolve(task, "paper")[1].plan(cases).total_steps == pytest.approx(steps, rel=0.003)


def test_heads_and_encoders_follow_the_data():
    tokens = DataInfo("multiclass", 1, 2, 4000, symbols=tuple("abc"))
    pair = model_config("retrieval", ModelConfig(), tokens, "fp32")
    assert (pair.head, pair.encoder, pair.vocabulary) == ("pair", "embedding", 3)
    assert model_config("text", ModelConfig(), tokens, "fp32").head == "pool"
    pixels = model_config("pathx", ModelConfig(), DataInfo("multiclass", 1, 2, 16_384), "fp32")
    assert (pixels.head, pixels.encoder, pixels.vocabulary) == ("pool", "linear", None)


@pytest.mark.parametrize(("dt_rate", "c_rate"), [("ssm", "global"), ("global", "global"), ("ssm", "ssm")])
def test_every_parameter_has_the_rate_its_recipe_says(dt_rate, c_rate):
    options = ModelConfig(d_model=4, n_layers=2, d_state=8)
    model = SequenceModel(model_config("text", options, DataInfo("multiclass", 1, 2, 9, symbols=tuple("abcd")), "fp32"))
    given = TrainConfig(lr=0.01, lr_ssm=0.002, weight_decay=0.05, dt_rate=dt_rate, c_rate=c_rate)
    groups = optimiser_groups(model, given)
    rates = {id(p): (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(rates) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        leaf = name.rpartition(".")[2]
        if leaf == "log_dt":
            expected = (0.01 if dt_rate == "global" else 0.002, 0.0)
        elif leaf in ("log_decay", "frequency", "B", "P"):
            expected = (0.002, 0.0)
        elif leaf == "C":
            expected = (0.002 if c_rate == "ssm" else 0.01, 0.05)
        elif parameter.dim() < 2 or "encoder" in name:
            expected = (0.01, 0.0)
        else:
            expected = (0.01, 0.05)
        assert rates[id(parameter)] == expected, name


def test_padding_of_a_batch_changes_no_answer(tmp_path):
    make_listops(tmp_path)
    data = load_listops(tmp_path)
    model = SequenceModel(model_config("listops", ModelConfig(d_model=8, n_layers=2, d_state=8, bidirectional=True),
                                       data.info, "fp32")).eval()  # fmt: skip
    batch = data.test.take(torch.arange(8))
    alone = torch.cat([model(one.x, lengths=one.lengths) for one in map(data.test.take, torch.arange(8)[:, None])])
    torch.testing.assert_close(model(batch.x, lengths=batch.lengths), alone, atol=1e-5, rtol=1e-4)
    assert batch.x.shape[1] > int(batch.lengths.min())
