"""ListOps: nested operations on digits, drawn to the grammar of the Long Range Arena and written in its layout.

    [MAX 3 [SM 4 9 ] 1 ]  →  3        written with a pair of parentheses for every argument and for the end:
    ( ( ( ( [MAX 3 ) ( ( ( [SM 4 ) 9 ) ] ) ) 1 ) ] )

Block k of a set depends on the seed and on k alone, so the set is the same whatever the number of processes. `arena`
reads the files, generated or released.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from wavessm.errors import DataError, OptionError
from wavessm.training.checkpoint import replacing
from wavessm_lab.generate.parallel import in_order
from wavessm_lab.tasks.listops import FILES, FOLDER, OPERATORS

_BLOCK = 250


@dataclasses.dataclass(frozen=True)
class Grammar:
    """What is drawn. The defaults are the published ones.

    A node at a depth below max_depth is an operator with probability p_operator, else a digit; an operator has 2 to
    max_args arguments. A digit counts 1 towards the length, an operator 2; trees of min_length < length < max_length
    are kept.
    """

    max_depth: int = 10
    max_args: int = 10
    min_length: int = 500
    max_length: int = 2000
    p_operator: float = 0.25


PUBLISHED = Grammar()


class Expression(NamedTuple):
    """One accepted tree: its text, value, length in tokens, operators, and draws it took (itself included)."""

    text: str
    value: int
    length: int
    operators: int
    draws: int


class _TooLong(Exception):
    pass


def draw(rng: random.Random, grammar: Grammar = PUBLISHED) -> Expression:
    """The next tree of the grammar that is long enough and not too long.

    >>> small = draw(random.Random(1), Grammar(min_length=3, max_length=9))
    >>> small.text, small.value
    ('( ( ( ( ( [SM 1 ) 7 ) 3 ) 5 ) ] )', 6)
    """
    for draws in itertools.count(1):
        # Only `random()` is used: its stream is promised to stay the same in every version of Python.
        if rng.random() > grammar.p_operator:
            continue  # a single digit, of length 1
        parts: list[str] = []
        tree = _Tree(rng.random, grammar, parts)
        try:
            value = tree.operator(1)
        except _TooLong:
            continue
        if tree.length > grammar.min_length:
            return Expression("".join(parts)[1:], value, tree.length, tree.operators, draws)
    raise AssertionError("unreachable")


class _Tree:
    """A tree while it is being drawn; the pieces of its text, each with a space before it, go to `parts`."""

    def __init__(self, uniform: Callable[[], float], grammar: Grammar, parts: list[str]) -> None:
        self.uniform, self.grammar, self.parts = uniform, grammar, parts
        self.length = self.operators = 0

    def operator(self, depth: int) -> int:
        """Draw an operator with its arguments; its value."""
        uniform, parts, p_operator = self.uniform, self.parts, self.grammar.p_operator
        count = 2 + int(uniform() * (self.grammar.max_args - 1))
        name = OPERATORS[int(uniform() * 4)]
        self.length += 2
        self.operators += 1
        parts.append(" (" * (count + 1) + " [" + name)
        inner = depth + 1 < self.grammar.max_depth
        values = []
        for _ in range(count):
            if inner and uniform() < p_operator:
                values.append(self.operator(depth + 1))
                parts.append(" )")
                continue
            digit = int(uniform() * 10)
            values.append(digit)
            parts.append(f" {digit} )")
            self.length += 1
        if self.length >= self.grammar.max_length:
            raise _TooLong
        parts.append(" ] )")
        return _VALUES[name](values)


def _median(values: list[int]) -> int:
    ranked, half = sorted(values), len(values) // 2
    return ranked[half] if len(values) % 2 else (ranked[half - 1] + ranked[half]) // 2


_VALUES: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": _median,
    "SM": lambda values: sum(values) % 10,
}


def _draw_block(job: tuple[int, int, Grammar]) -> list[Expression]:
    seed, block, grammar = job
    rng = random.Random(f"listops {seed} {block}")
    return [draw(rng, grammar) for _ in range(_BLOCK)]


def stream(seed: int = 0, grammar: Grammar = PUBLISHED, workers: int = 1) -> Generator[Expression]:
    """Different expressions without end; the same for every number of workers (0: one a core)."""
    seen: set[bytes] = set()
    repeated = 0
    jobs = ((seed, block, grammar) for block in itertools.count())
    for block in in_order(_draw_block, jobs, workers):
        for expression in block:
            mark = hashlib.blake2b(expression.text.encode(), digest_size=12).digest()
            if mark not in seen:
                seen.add(mark)
                repeated = 0
                yield expression
            elif (repeated := repeated + 1) > 100_000:
                raise OptionError(f"listops: this grammar has about {len(seen)} expressions only; ask for fewer.")


SIZES = (96_000, 2_000, 2_000)
"""Examples for training, validation and test, as published."""


def generate_listops(
    root: str | Path,
    seed: int = 0,
    sizes: tuple[int, int, int] = SIZES,
    workers: int = 0,
    grammar: Grammar = PUBLISHED,
    show: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Write listops-1000/basic_{train,val,test}.tsv below `root`. Files appear under their names when they are whole.

    show: called with (examples done, examples in all) now and then.
    Returns numbers that can be compared with the published set.
    """
    folder = Path(root) / FOLDER
    if any((folder / name).exists() for name in FILES.values()):
        raise DataError(f"{folder}: there is a ListOps set already; remove it first, or give another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(sizes)
    made: list[tuple[int, int, int, int]] = []  # value, length, operators and draws of every expression
    expressions = stream(seed, grammar, workers)
    with closing(expressions), ExitStack() as stack:
        for name, size in zip(FILES.values(), sizes, strict=True):
            file = stack.enter_context(replacing(folder / name))
            file.write(b"Source\tTarget\r\n")  # line ends as Python's csv module wrote them for the release
            for expression in itertools.islice(expressions, size):
                file.write(f"{expression.text}\t{expression.value}\r\n".encode())
                made.append(expression[1:])
                if show is not None and (len(made) % _BLOCK == 0 or len(made) == total):
                    show(len(made), total)
    values, lengths, operators, draws = np.array(made).T
    labels = np.bincount(values, minlength=10) / total
    return {
        "examples": total, "trees drawn for each": draws.mean(), "mean length": lengths.mean(),
        "median length": np.median(lengths), "shortest": lengths.min(), "longest": lengths.max(),
        "operators in a tree": operators.mean(), **{f"share of {k}": share for k, share in enumerate(labels)},
    }  # fmt: skip
