"""ListOps: the grammar against another evaluator and its exact length distribution; files, blocks, reading."""

import itertools
import random
import re
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniatures import load_listops
from wavessm.errors import DataError, OptionError
from wavessm_lab.generate.listops import FILES, Grammar, draw, generate_listops, stream

SMALL = Grammar(min_length=10, max_length=60)
OPERATIONS = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(statistics.median(values)),
    "SM": lambda values: sum(values) % 10,
}


def by_application(text):
    """The value of the text with parentheses: every pair applies its left side to its right."""
    stack = [[]]
    for token in text.split():
        if token == "(":
            stack.append([])
            continue
        if token == ")":
            left, right = stack.pop()
            if isinstance(left, str):
                token = (left[1:], [right])
            elif right == "]":
                token = OPERATIONS[left[0]](left[1])
            else:
                token = (left[0], [*left[1], right])
        elif token.isdigit():
            token = int(token)
        stack[-1].append(token)
    ((value,),) = stack
    return value


def shape_of(text):
    """Depth of the tree, arguments of every operator, digits."""
    depth, deepest, arguments, digits, open_lists = 0, 0, [], 0, []
    for token in re.sub("[()]", " ", text).split():
        if token == "]":
            arguments.append(open_lists.pop())
            depth -= 1
            continue
        if open_lists:
            open_lists[-1] += 1
        deepest = max(deepest, depth + 1)
        if token[0] == "[":
            depth += 1
            open_lists.append(0)
        else:
            digits += 1
    return deepest, arguments, digits


@given(st.integers(0, 10**9), st.sampled_from([SMALL, Grammar(max_depth=4, max_args=3, min_length=5, max_length=40)]))
def test_every_expression_has_the_value_that_another_evaluator_finds(seed, grammar):
    expression = draw(random.Random(seed), grammar)
    assert by_application(expression.text) == expression.value


def test_published_expressions_evaluate_to_their_labels_and_keep_the_published_bounds():
    for expression in itertools.islice(stream(seed=3), 300):
        assert by_application(expression.text) == expression.value
        depth, arguments, digits = shape_of(expression.text)
        assert depth <= 10
        assert min(arguments) >= 2
        assert max(arguments) <= 10
        assert expression.operators == len(arguments)
        assert expression.length == digits + 2 * len(arguments)
        assert 500 < expression.length < 2000
        # a tree whose operators have 2 to 10 arguments has n + 1 to 9 n + 1 digits
        assert 3 * len(arguments) + 1 <= expression.length <= 11 * len(arguments) + 1


def exact_lengths(longest=2000):
    """P(length) of a drawn tree, by convolution from the leaves up; index = length."""
    law = np.zeros(longest)
    law[1] = 1.0
    for _ in range(9):
        argument, several = law, law
        operator = np.zeros(longest)
        for _ in range(9):
            several = np.convolve(several, argument)[:longest]
            operator[2:] += several[:-2] / 9
        law = 0.25 * operator
        law[1] += 0.75
    return law


def test_lengths_follow_the_exact_law_of_the_grammar():
    law = exact_lengths()
    accepted = law[501:].sum()
    mean = (np.arange(501, 2000) * law[501:]).sum() / accepted
    deviation = np.sqrt((np.arange(501, 2000) ** 2 * law[501:]).sum() / accepted - mean**2)
    sample = list(itertools.islice(stream(seed=5), 1500))
    lengths, draws = np.array([e.length for e in sample]), sum(e.draws for e in sample)
    assert abs(lengths.mean() - mean) < 4 * deviation / np.sqrt(len(sample))
    assert abs(len(sample) / draws - accepted) < 4 * np.sqrt(accepted * (1 - accepted) / draws)
    below = np.cumsum(law[501:]) / accepted  # Kolmogorov–Smirnov at one in ten thousand
    found = np.searchsorted(np.sort(lengths), np.arange(501, 2000), side="right") / len(lengths)
    assert np.abs(found - below).max() < 2.3 / np.sqrt(len(sample))
    assert accepted == pytest.approx(0.083, abs=0.001)  # measured with the published program: about 8 %
    assert mean == pytest.approx(1044, abs=3 * deviation / np.sqrt(3000))  # likewise, on 3,000


def test_the_set_is_the_same_for_every_number_of_processes_and_without_repeats(tmp_path):
    tight = Grammar(max_depth=3, max_args=2, min_length=3, max_length=8)  # few expressions: repeats must occur
    sizes = (300, 40, 40)
    for workers in (1, 2):
        generate_listops(tmp_path / str(workers), seed=7, sizes=sizes, workers=workers, grammar=tight)
    texts = []
    for size, name in zip(sizes, FILES.values(), strict=True):
        one, two = (tmp_path / workers / "listops-1000" / name for workers in "12")
        assert one.read_bytes() == two.read_bytes()
        lines = one.read_text().splitlines()
        assert lines[0] == "Source\tTarget"
        assert len(lines) == size + 1
        texts += [line.split("\t")[0] for line in lines[1:]]
    assert len(set(texts)) == len(texts) == 380
    other = generate_listops(tmp_path / "other", seed=8, sizes=sizes, workers=1, grammar=tight)
    assert other["examples"] == 380
    assert (tmp_path / "other/listops-1000/basic_val.tsv").read_bytes() != one.with_name("basic_val.tsv").read_bytes()


def test_a_grammar_too_small_for_the_set_ends_with_a_line():
    tiny = Grammar(max_depth=2, max_args=2, min_length=3, max_length=5)  # 4 operators on two digits: 400
    with pytest.raises(OptionError, match=r"has about 400 expressions only"):
        list(itertools.islice(stream(0, tiny), 401))


def test_a_stopped_generator_leaves_nothing_that_looks_whole(tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate_listops(tmp_path, sizes=(300, 10, 10), workers=1, grammar=SMALL, show=stop)
    assert list((tmp_path / "listops-1000").iterdir()) == []
    generate_listops(tmp_path, sizes=(30, 10, 10), workers=1, grammar=SMALL)
    with pytest.raises(DataError, match="there is a ListOps set already"):
        generate_listops(tmp_path, workers=1)


def test_tokens_are_those_of_a_slow_reading(tmp_path):
    generate_listops(tmp_path, sizes=(20, 5, 5), workers=1, grammar=SMALL)
    data = load_listops(tmp_path)
    assert len(data.info.symbols) == 18
    for part, source in (("train", data.train), ("val", data.val), ("test", data.test)):
        lines = (tmp_path / "listops-1000" / FILES[part]).read_text().splitlines()[1:]
        batch = source.take(np_index(len(source)))
        for line, row, length, label in zip(lines, batch.x.tolist(), batch.lengths.tolist(), batch.y, strict=True):
            text, value = line.split("\t")
            words = text.replace("]", "X").replace("(", "").replace(")", "").split()
            assert [data.info.symbols[token] for token in row[:length]] == [*words, "<eos>"]
            assert set(row[length:]) <= {0}
            assert int(label) == int(value)


def test_long_expressions_are_cut_to_leave_room_for_the_end(tmp_path):
    generate_listops(tmp_path, sizes=(20, 5, 5), workers=1, grammar=SMALL)
    whole, cut = load_listops(tmp_path), load_listops(tmp_path, max_length=12)
    batch, short = (data.train.take(np_index(20)) for data in (whole, cut))
    assert short.x.shape[1] == int(short.lengths.max()) == 12
    assert (short.x[short.lengths == 12][:, -1] == 2).all()
    assert (short.x[:, :11][batch.lengths > 12] == batch.x[:, :11][batch.lengths > 12]).all()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("( ( ( [TOP 1 ) 2 ) ] )\t2", "line 3 is no expression"),
        ("( ( ( [MAX 1 ) 2 ) ] )\t12", "line 3"),
        ("", "line 3"),
    ],
)
def test_foreign_lines_are_named(tmp_path, line, said):
    generate_listops(tmp_path, sizes=(5, 5, 5), workers=1, grammar=SMALL)
    path = tmp_path / "listops-1000" / "basic_val.tsv"
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("\n".join(lines))
    with pytest.raises(DataError, match=said):
        load_listops(tmp_path)


def np_index(count):
    import torch

    return torch.arange(count)
