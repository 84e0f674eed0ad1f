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
import os
import random
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

from wavessm.data.datasets.listops import FILES, FOLDER, OPERATORS
from wavessm.data.parallel import in_order
from wavessm.errors import DataError, OptionError, check_int

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

    def __post_init__(self) -> None:
        check_int(self.max_depth, "listops: max_depth", minimum=2)
        check_int(self.max_args, "listops: max_args", minimum=2)
        check_int(self.min_length, "listops: min_length", minimum=0)
        if self.max_length < self.min_length + 2:
            raise OptionError(
                f"listops: no length lies between min_length {self.min_length} and max_length {self.max_length}."
            )


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


class _Block(NamedTuple):
    seed: int
    block: int
    grammar: Grammar


def _draw_block(job: _Block) -> list[Expression]:
    rng = random.Random(f"listops {job.seed} {job.block}")
    return [draw(rng, job.grammar) for _ in range(_BLOCK)]


def stream(seed: int = 0, grammar: Grammar = PUBLISHED, workers: int = 1) -> Iterator[Expression]:
    """Different expressions without end; the same for every number of workers (0: one a core)."""
    seen: set[bytes] = set()
    repeated = 0
    jobs = (_Block(seed, block, grammar) for block in itertools.count())
    for block in in_order(_draw_block, jobs, workers):
        for expression in block:
            mark = hashlib.blake2b(expression.text.encode(), digest_size=12).digest()
            if mark not in seen:
                seen.add(mark)
                repeated = 0
                yield expression
            elif (repeated := repeated + 1) > 100_000:
                raise OptionError(f"listops: this grammar has about {len(seen)} expressions only; ask for fewer.")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Examples of the three parts; the defaults are the published ones."""

    train: int = 96_000
    val: int = 2_000
    test: int = 2_000

    def __post_init__(self) -> None:
        for part in FILES:
            check_int(getattr(self, part), f"listops: {part}", minimum=1)


@dataclasses.dataclass
class ListopsStatistics:
    """Of a generated set: to be held against the published ones."""

    examples: int = 0
    draws: int = 0
    tokens: int = 0
    operators: int = 0
    lengths: list[int] = dataclasses.field(default_factory=list)
    labels: list[int] = dataclasses.field(default_factory=lambda: [0] * 10)

    def add(self, expression: Expression) -> None:
        """Count one more expression."""
        self.examples += 1
        self.draws += expression.draws
        self.tokens += expression.length
        self.operators += expression.operators
        self.lengths.append(expression.length)
        self.labels[expression.value] += 1

    def lines(self) -> list[str]:
        """As text, a line each."""
        ranked = sorted(self.lengths)
        shares = " ".join(f"{100 * count / self.examples:.1f}" for count in self.labels)
        return [
            f"examples {self.examples:,} of {self.draws:,} trees drawn ({100 * self.examples / self.draws:.1f} %)",
            f"length   mean {self.tokens / self.examples:.0f}, median {ranked[len(ranked) // 2]}, "
            f"from {ranked[0]} to {ranked[-1]}; operators a tree {self.operators / self.examples:.0f}",
            f"labels   0 to 9, %: {shares}",
        ]


def generate_listops(
    root: str | Path,
    seed: int = 0,
    sizes: Sizes | None = None,
    workers: int = 0,
    grammar: Grammar = PUBLISHED,
    show: Callable[[int, int], None] | None = None,
) -> ListopsStatistics:
    """Write listops-1000/basic_{train,val,test}.tsv below `root`. Files appear under their names when they are whole.

    show: called with (examples done, examples in all) now and then.
    """
    sizes = sizes or Sizes()
    folder = Path(root) / FOLDER
    if any((folder / name).exists() for name in FILES.values()):
        raise DataError(f"{folder}: there is a ListOps set already; remove it first, or give another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    total = sizes.train + sizes.val + sizes.test
    statistics = ListopsStatistics()
    expressions = stream(seed, grammar, workers)
    partial = {part: folder / f".{name}.{secrets.token_hex(4)}.partial" for part, name in FILES.items()}
    try:
        for part, path in partial.items():
            with open(path, "w", encoding="ascii", newline="") as file:
                _write_part(file, itertools.islice(expressions, getattr(sizes, part)), statistics, (total, show))
        for part, path in partial.items():
            os.replace(path, folder / FILES[part])
    finally:
        expressions.close()  # type: ignore[attr-defined]
        for path in partial.values():
            path.unlink(missing_ok=True)
    return statistics


def _write_part(
    file: TextIO,
    expressions: Iterator[Expression],
    statistics: ListopsStatistics,
    progress: tuple[int, Callable[[int, int], None] | None],
) -> None:
    file.write("Source\tTarget\r\n")  # line ends as Python's csv module wrote them for the release
    total, show = progress
    for expression in expressions:
        file.write(f"{expression.text}\t{expression.value}\r\n")
        statistics.add(expression)
        if show is not None and (statistics.examples % _BLOCK == 0 or statistics.examples == total):
            show(statistics.examples, total)
