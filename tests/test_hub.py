"""Model folders: what goes in comes out, and what is not a model of ours is refused in one line."""

import json
import pickle
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import wavessm as ws
from contracts import check_refused
from wavessm.errors import DataError
from wavessm.nn.pretrained import Card, read_extra, save_model


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = ws.ModelConfig(d_input=2, d_output=3, d_model=8, n_layers=2, d_state=8, norm="batch", bidirectional=True)
    model = ws.SequenceModel(config)
    model(torch.randn(4, 20, 2))  # batch norm has statistics of its own now
    return model.eval()


def test_a_folder_gives_the_same_model_back(model, tmp_path):
    folder = model.save_pretrained(tmp_path / "model")
    x = torch.randn(2, 31, 2)
    loaded = ws.SequenceModel.from_pretrained(folder)
    assert not loaded.training
    assert torch.equal(loaded(x), model(x))
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]


def test_what_travels_with_it_and_the_card(model, tmp_path):
    card = Card("classify beats", "made up", {"accuracy": 0.875}, "Scale to one first.", "mit")
    folder = save_model(model, tmp_path / "model", card, {"classes": ["a", "b", "c"]})
    assert read_extra(folder) == {"classes": ["a", "b", "c"]}
    text = (folder / "README.md").read_text()
    for words in (
        "license: mit",
        "classify beats",
        "made up",
        "| accuracy | 0.875 |",
        "Scale to one",
        "from_pretrained",
    ):
        assert words in text


def test_a_repository_is_loaded_through_the_hub(model, tmp_path, monkeypatch):
    import huggingface_hub

    folder, asked = model.save_pretrained(tmp_path / "copy"), {}

    def snapshot_download(repository, **options):
        asked.update(options, repository=repository)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    loaded = ws.SequenceModel.from_pretrained("someone/beats", revision="v1", local_files_only=True)
    x = torch.randn(2, 31, 2)
    assert torch.equal(loaded(x), model(x))
    assert (asked["repository"], asked["revision"], asked["local_files_only"]) == ("someone/beats", "v1", True)
    with pytest.raises(ws.OptionError, match="revision goes with a repository"):
        ws.SequenceModel.from_pretrained(folder, revision="v1")


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was loaded')",))


def test_no_pickle_is_ever_loaded(model, tmp_path):
    folder = model.save_pretrained(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="never loaded"):
        ws.SequenceModel.from_pretrained(folder)
    (folder / "model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DataError, match="not a whole safetensors file"):
        ws.SequenceModel.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 2}, "format version 2"),
        ({"version": 0}, "format version 0"),
        ({"format": "other"}, "not a model of wavessm"),
        ({"model": {"d_modle": 8}}, "did you mean 'd_model'"),
        ({"model": {"d_input": 2, "d_output": 4, "d_model": 8, "n_layers": 2, "d_state": 8}}, "do not fit config.json"),
        ({"model": ""}, "cannot be used by"),
    ],
)
def test_other_versions_and_contents_are_refused_in_one_line(model, tmp_path, change, words):
    folder = model.save_pretrained(tmp_path / "model")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    check_refused(lambda: ws.SequenceModel.from_pretrained(folder), DataError, words)


def test_folders_that_are_none_are_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    for source, words in ((tmp_path, "cannot be read"), (tmp_path / "nothing", "not a model folder")):
        with pytest.raises(DataError, match=words):
            ws.SequenceModel.from_pretrained(source)


def test_a_missing_extra_is_named(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ws.MissingExtraError, match=r"wavessm\[hub\]"):
        model.save_pretrained(tmp_path / "model")


def test_files_of_others_are_not_overwritten(model, tmp_path):
    (tmp_path / "README.md").write_text("My notes.\n")
    with pytest.warns(UserWarning, match="not by wavessm and stays as it is") as said:
        model.save_pretrained(tmp_path)
    assert "\n" not in str(said[0].message)
    assert (tmp_path / "README.md").read_text() == "My notes.\n"
    (tmp_path / "README.md").unlink()
    model.save_pretrained(tmp_path)
    again = save_model(model, tmp_path, Card("a second save"))
    assert "a second save" in (again / "README.md").read_text(), "files of our own are replaced"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_models_of_others_are_refused_in_one_line(model, tmp_path, name):
    other = tmp_path / "theirs"
    other.mkdir()
    (other / name).write_text('{"model_type": "bert"}')
    check_refused(lambda: model.save_pretrained(other), DataError, f"{name}: is there already and not by wavessm")
    assert [file.name for file in other.iterdir()] == [name]
    assert (other / name).read_text() == '{"model_type": "bert"}'


def test_a_sampled_model_is_refused_before_anything_is_written(tmp_path):
    model = ws.SequenceModel(ws.ModelConfig(d_model=4, n_layers=1, d_state=4))
    model.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ws.OptionError, match="sampled for streams"):
        ws.sampled(model).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(model, tmp_path, value):
    folder = model.save_pretrained(tmp_path)
    weights = load_file(folder / "model.safetensors")
    weights["head.decoder.bias"][1] = value
    save_file(weights, folder / "model.safetensors")
    words = r"head\.decoder\.bias has numbers that are not finite"
    check_refused(lambda: ws.SequenceModel.from_pretrained(folder), DataError, words)


def test_a_config_with_which_the_weights_would_mean_something_else_is_refused(tmp_path):
    model = ws.SequenceModel(ws.ModelConfig(d_model=4, d_input=2, d_output=3, d_state=4, n_layers=1))
    folder = model.save_pretrained(tmp_path / "model")
    content = json.loads((folder / "config.json").read_text())
    content["model"]["prenorm"] = not content["model"]["prenorm"]  # the weights have the same names and shapes
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"do not fit config\.json"):
        ws.SequenceModel.from_pretrained(folder)
