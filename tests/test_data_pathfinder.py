"""Pathfinder: labels against connected components of the drawn paths, settings as published, sets that go on."""

import functools
import itertools
import math
import random

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage

import miniatures
from miniatures import load_pathfinder
from wavessm.errors import DataError
from wavessm_lab.generate.pathfinder import generate_pathfinder
from wavessm_lab.generate.snakes import draw_picture
from wavessm_lab.generate.strokes import STYLES

FINE = 8  # subpixels of the connectivity check


@functools.cache
def pictures(size):
    count = 150 if size == 32 else 8
    return [draw_picture(size, random.Random(f"test {size} {i}")) for i in range(count)]


def components(picture, size):
    """Connected components of all paths, each drawn through its gaps on a fine grid."""
    grid = np.zeros(((size + 8) * FINE, (size + 8) * FINE), bool)
    for path in (*picture.paths, *picture.distractors):
        corners = [point for paddle in path for point in (paddle.tail, paddle.head)]
        for (y0, x0), (y1, x1) in itertools.pairwise(corners):
            steps = math.ceil(2 * FINE * max(abs(y1 - y0), abs(x1 - x0), 1))
            t = np.linspace(0, 1, steps)
            rows, columns = y0 + (y1 - y0) * t + 4, x0 + (x1 - x0) * t + 4
            grid[np.round(rows * FINE).astype(int), np.round(columns * FINE).astype(int)] = True
    return ndimage.label(grid, structure=np.ones((3, 3)))[0]


def component_of(labels, point):
    return labels[round((point[0] + 4) * FINE), round((point[1] + 4) * FINE)]


@pytest.mark.parametrize("size", [32, 128])
def test_the_label_says_whether_the_discs_lie_on_one_connected_path(size):
    for picture in pictures(size):
        labels = components(picture, size)
        one, other = (component_of(labels, marker) for marker in picture.markers)
        assert one > 0
        assert other > 0
        assert (one == other) == bool(picture.label)
        first, second = (component_of(labels, path[0].tail) for path in picture.paths)
        assert first != second, "the two long paths touch"


def test_as_published_some_long_paths_touch():
    met = 0
    for i in range(60):
        picture = draw_picture(32, random.Random(f"met {i}"), as_published=True)
        labels = components(picture, 32)
        met += component_of(labels, picture.paths[0][0].tail) == component_of(labels, picture.paths[1][0].tail)
    assert 10 <= met <= 40  # two in five


@pytest.mark.parametrize("size", [32, 128])
def test_pictures_keep_the_published_settings(size):
    style = STYLES[size]
    for picture in pictures(size):
        assert [len(path) for path in picture.paths] == [14, 14]
        assert len(picture.distractors) <= style.distractors
        assert {len(path) for path in picture.distractors} <= {4}
        assert picture.margin in style.margins
        first, second = (path[0].tail for path in picture.paths)
        distance = 2 * style.seed_distance
        assert all(distance <= value < size - distance for value in first)
        assert math.dist(first, second) == pytest.approx(style.seed_distance, abs=1)
        for path in picture.paths:
            for paddle in path:
                assert all(0 <= value < size for value in paddle.head)
                assert math.dist(paddle.tail, paddle.head) == pytest.approx(style.paddle_length, abs=1.5)
            heads = [np.array(paddle.head) for paddle in path]
            stride = style.paddle_length + 2 * picture.margin
            for here, there in itertools.pairwise(heads):
                assert np.linalg.norm(there - here) <= stride + 3


@pytest.mark.parametrize("size", [32, 128])
def test_paddles_turn_no_further_than_continuity_allows(size):
    limit = math.pi / 2 / STYLES[size].continuity
    turns = []
    for picture in pictures(size):
        for path in picture.paths:
            strokes = [np.subtract(paddle.head, paddle.tail) for paddle in path[1:]]
            for a, b in itertools.pairwise(strokes):
                turns.append(abs(math.remainder(math.atan2(*a) - math.atan2(*b), 2 * math.pi)))
    rounding = 2 * math.atan(1.5 / STYLES[size].paddle_length)  # ends lie on pixels
    assert max(turns) < limit + rounding
    assert np.mean(turns) < limit


def test_paths_and_discs_are_in_the_picture():
    for picture in pictures(128):
        inked = picture.pixels.astype(int)
        for path in (*picture.paths, *picture.distractors):
            for paddle in path:
                middle = np.round(np.mean([paddle.tail, paddle.head], axis=0)).astype(int)
                window = inked[middle[0] - 1 : middle[0] + 2, middle[1] - 1 : middle[1] + 2]
                assert window.max() > 150, "a paddle left no ink"
        for y, x in picture.markers:
            disc = inked[max(0, y - 2) : y + 2, max(0, x - 2) : x + 2]
            assert disc.min() > 150, "a marker is no filled disc"
        assert (inked > 0).mean() < 0.2


def test_half_of_the_labels_are_joined_and_most_short_paths_find_room():
    labels = [picture.label for picture in pictures(32)]
    assert abs(np.mean(labels) - 0.5) < 4 * 0.5 / math.sqrt(len(labels))
    assert 3.5 < np.mean([len(picture.distractors) for picture in pictures(32)]) <= 5


# -- sets -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr("wavessm_lab.generate.pathfinder._BATCH", {32: 6, 128: 2})


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_stopped_generator_goes_on_and_makes_the_same_set(tmp_path, small_batches):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    unbroken = generate_pathfinder(whole, count=16, seed=4, workers=1)

    def stop(done, total):
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_pathfinder(broken, count=16, seed=4, workers=1, show=stop)
    folder = broken / "pathfinder32" / "curv_contour_length_14"
    assert len(list((folder / "metadata").iterdir())) == 1
    with pytest.raises(DataError, match="1 batches of 3; the generator was stopped"):
        load_pathfinder(broken)
    (folder / "imgs" / ".1.abcd.partial").mkdir()  # killed while drawing
    (folder / "imgs" / ".1.abcd.partial" / "sample_0.png").write_bytes(b"half a picture")
    (folder / "imgs" / "2").mkdir()  # killed before the metadata
    (folder / "imgs" / "2" / "sample_99.png").write_bytes(b"")
    drawn = []
    resumed = generate_pathfinder(broken, count=16, seed=4, workers=1, show=lambda done, total: drawn.append(done))
    assert drawn == [6, 12, 16]
    assert tree(broken) == tree(whole)
    assert resumed == unbroken, "statistics are those of the whole set"
    assert generate_pathfinder(broken, count=16, seed=4, workers=1) == unbroken
    assert tree(broken) == tree(whole)


def test_another_set_is_not_mixed_in(tmp_path, small_batches):
    generate_pathfinder(tmp_path, count=6, seed=4, workers=1)
    with pytest.raises(DataError, match="started with"):
        generate_pathfinder(tmp_path, count=6, seed=5, workers=1)
    miniatures.pathfinder(tmp_path / "release")
    with pytest.raises(DataError, match="was not generated here"):
        generate_pathfinder(tmp_path / "release", count=6, workers=1)


def test_generated_and_released_sets_are_read_alike(tmp_path, small_batches):
    statistics = generate_pathfinder(tmp_path, count=30, seed=1, workers=1)
    data = load_pathfinder(tmp_path)
    parts = (data.train, data.val, data.test)
    assert [len(part) for part in parts] == [24, 3, 3]
    assert sum(int(part.y.sum()) for part in parts) == statistics["joined"]
    # the split by hand: a permutation with seed 42 of all pictures in the order of the metadata
    order = torch.randperm(30, generator=torch.Generator().manual_seed(42)).tolist()
    folder = tmp_path / "pathfinder32" / "curv_contour_length_14"
    lines = [line.split() for b in range(5) for line in (folder / "metadata" / f"{b}.npy").read_text().splitlines()]
    for source, rows in zip(parts, (order[:24], order[24:27], order[27:]), strict=True):
        batch = source.take(torch.arange(len(rows)))
        for x, y, row in zip(batch.x, batch.y, rows, strict=True):
            pixels = np.asarray(Image.open(folder / lines[row][0] / lines[row][1]))
            np.testing.assert_allclose(x[:, 0].numpy(), pixels.reshape(-1) / 255, atol=1e-6)
            assert int(y) == int(lines[row][3])
    raw = torch.tensor([[0.0], [255.0]])
    assert data.info.standardise(raw).flatten().tolist() == [0, 1]


def test_the_release_is_found_where_it_unpacks_and_bad_pictures_are_named(tmp_path):
    miniatures.pathfinder(tmp_path / "lra_release" / "lra_release")
    assert len(load_pathfinder(tmp_path).train) == 24
    place = tmp_path / "lra_release" / "lra_release" / "pathfinder32" / "curv_contour_length_14" / "imgs" / "1"
    (place / "sample_3.png").write_bytes(b"")
    (place / "extra").touch()  # as unpacking again would change the folder's time
    with pytest.raises(DataError, match=r"imgs/1/sample_3\.png: not a readable picture"):
        load_pathfinder(tmp_path)
    data = load_pathfinder(tmp_path, skip_bad=True)
    assert data.info.skipped == ("imgs/1/sample_3.png",)
    assert len(data.train) + len(data.val) + len(data.test) == 29


def test_pathx_pictures_go_to_their_own_folder(tmp_path, small_batches):
    generate_pathfinder(tmp_path, "pathx", count=2, workers=1)
    pixels = np.asarray(Image.open(tmp_path / "pathfinder128/curv_contour_length_14/imgs/0/sample_1.png"))
    assert pixels.shape == (128, 128)
    assert pixels.dtype == np.uint8
    fields = (tmp_path / "pathfinder128/curv_contour_length_14/metadata/0.npy").read_text().splitlines()[0].split()
    assert fields[:3] == ["imgs/0", "sample_0.png", "0"]
    assert fields[4:9] == ["1.8", "14", "4", "5", "1.5"]
