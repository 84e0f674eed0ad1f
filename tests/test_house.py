"""The rules of the house: import order, sizes, documentation, one meaning per type name.

Each rule lists its violations by room (an entry at the top level of the package, or "lab"). `ALLOWED` holds what does
not hold yet; rooms shrink it, and it ends empty. `python tests/test_house.py` prints lines, `raise` statements and all
violations of today.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARY, LAB = ROOT / "src/wavessm", ROOT / "lab/src/wavessm_lab"

STAGES = [
    {"errors"}, {"frames"}, {"operators", "structure"}, {"discretize"}, {"memory"}, {"ops"}, {"nn"}, {"features"},
    {"data"}, {"training"}, {"estimators"}, {"export"}, {"inspection"}, {"cli"},
]  # fmt: skip
"""DESIGN section 3: a stage imports earlier ones only. Operators return their structures: those two are one stage."""
ORDER = {room: place for place, rooms in enumerate(STAGES) for room in rooms}
ROOT_FILES = {"__init__.py", "__main__.py", "py.typed"}

MAX_ENTRIES, MAX_FUNCTION = 18, 60
MAX_LINES = {"src": 22_110, "lab": 6_998}
"""Lines of Python in each package: all rooms, docstrings and blank lines included. Who makes it smaller lowers this."""

WORDS = re.compile(
    r"\bStage \d|\b(hears?|heard|speaks?|spoken|louder|goes on|go on with|going on|so many|as many as|stands? aside|"
    r"judg\w+|begun|shel[fv]\w*|keeper|turning|(?<!\")slow_down|bare_module|settled?|can_look)\b",
    re.IGNORECASE,
)
"""Words of STYLE section 8 that are recognised by themselves. A quoted slow_down is the name of a field in files of
earlier versions, which still load."""

ALLOWED: dict[str, dict[str, int]] = {}
"""{rule: {room: number of violations that are still there}}"""


@cache
def modules() -> dict[Path, ast.Module]:
    """Every Python file of both packages, parsed."""
    return {path: ast.parse(path.read_text()) for base in (LIBRARY, LAB) for path in sorted(base.rglob("*.py"))}


def room_of(path: Path) -> str:
    """The entry at the top level of the package that a file belongs to."""
    return "lab" if path.is_relative_to(LAB) else path.relative_to(LIBRARY).parts[0].removesuffix(".py")


def where(path: Path, node: ast.AST) -> str:
    """File and line, as an editor opens them."""
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def imported(path: Path, tree: ast.Module):
    """(node, dotted name) of every import of ours, those inside functions and behind TYPE_CHECKING included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where(path, node)}: a relative import; write it out"
            names = [node.module] if node.module != "wavessm" else [f"wavessm.{alias.name}" for alias in node.names]
            yield from ((node, name) for name in names)


def import_violations():
    """Imports against the order of the stages, and of the lab by the library."""
    for path, tree in modules().items():
        room = room_of(path)
        for node, name in imported(path, tree):
            parts = name.split(".")
            if room == "lab" or parts[0] not in ("wavessm", "wavessm_lab") or path == LIBRARY / "__init__.py":
                continue
            target = parts[1] if len(parts) > 1 else ""
            if parts[0] == "wavessm_lab":
                yield room, f"{where(path, node)}: the library imports the lab"
            elif room == "__main__" or target == "__version__":
                continue
            elif room not in ORDER or target not in ORDER:
                yield room, f"{where(path, node)}: {room} → {target or 'wavessm'} is outside the list of stages"
            elif ORDER[target] > ORDER[room]:
                yield room, f"{where(path, node)}: {room} → {target} points down"
            elif target == "operators" and room == "structure":
                yield room, f"{where(path, node)}: structure is the lower half of its stage"


def entry_violations():
    """Entries at the top level of the package that are no stage, and those beyond the limit."""
    entries = sorted(path.name for path in LIBRARY.iterdir() if path.name != "__pycache__")
    for name in entries:
        if name.removesuffix(".py") not in ORDER and name not in ROOT_FILES:
            yield name.removesuffix(".py"), f"src/wavessm/{name} is no stage of DESIGN section 3"
    for name in entries[MAX_ENTRIES:]:
        yield name.removesuffix(".py"), f"src/wavessm/{name} is entry {entries.index(name) + 1} of {MAX_ENTRIES}"


def length_violations():
    """Functions of more than 60 lines outside kernels."""
    for path, tree in modules().items():
        if (LIBRARY / "ops/triton") in path.parents:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (lines := node.end_lineno - node.lineno + 1) > MAX_FUNCTION:
                yield room_of(path), f"{where(path, node)}: {node.name} has {lines} lines"


def size_violations():
    """A package with more lines than `MAX_LINES` says."""
    for base, name in ((LIBRARY, "src"), (LAB, "lab")):
        lines = sum(len(path.read_text().splitlines()) for path in base.rglob("*.py"))
        if lines > MAX_LINES[name]:
            yield name, f"{name} has {lines} lines, at most {MAX_LINES[name]}"


def name_violations():
    """Class names with two definitions."""
    found = defaultdict(list)
    for path, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append((path, node))
    for name, places in found.items():
        for path, node in places if len(places) > 1 else []:
            yield room_of(path), f"{where(path, node)}: class {name} is defined {len(places)} times"


def public(body: list[ast.stmt], inherited: frozenset[str] = frozenset()):
    """Public classes, functions and methods of a module or class body; overrides inherit their documentation."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            marks = {ast.unparse(mark).split(".")[-1] for mark in node.decorator_list}
            if not marks & {"setter", "overload"} and node.name not in inherited:
                yield node
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public(node.body, overridden(node))


@cache
def documented_methods() -> dict[str, tuple[frozenset[str], tuple[str, ...]]]:
    """Class name → its documented methods and the names of its bases."""
    classes = (node for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        node.name: (
            frozenset(item.name for item in node.body if isinstance(item, ast.FunctionDef) and ast.get_docstring(item)),
            tuple(ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases),
        )
        for node in classes
    }


def overridden(node: ast.ClassDef) -> frozenset[str]:
    """Methods whose documentation comes from a base class: one of ours, or a hook that its library documents."""
    names = {"extra_repr"}
    bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
    while bases:
        base = bases.pop()
        names |= {"forward", "backward", "setup_context"} if base == "Function" else set()
        if base in documented_methods():
            methods, more = documented_methods()[base]
            names |= methods
            bases += more
    return frozenset(names)


def documentation_violations():
    """Modules and public classes, functions and methods without a docstring."""
    for path, tree in modules().items():
        if not ast.get_docstring(tree) and path.stat().st_size:
            yield room_of(path), f"{where(path, tree)}: the module has no docstring"
        for node in public(tree.body):
            if not ast.get_docstring(node):
                yield room_of(path), f"{where(path, node)}: {node.name} has no docstring"


def word_violations():
    """Lines of code, pages and examples with a word that STYLE section 8 replaces."""
    pages = {path: "docs" for pattern in ("*.md", "docs/*.md", "examples/*.py") for path in ROOT.glob(pattern)}
    for path, room in ({path: room_of(path) for path in modules()} | pages).items():
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if found := WORDS.search(line):
                yield room, f"{path.relative_to(ROOT)}:{number}: {found[0]!r}"


RULES = {
    "imports": import_violations,
    "entries": entry_violations,
    "function length": length_violations,
    "package size": size_violations,
    "type names": name_violations,
    "documentation": documentation_violations,
    "words": word_violations,
}


def violations(rule: str) -> dict[str, list[str]]:
    """The violations of a rule by room."""
    by_room: dict[str, list[str]] = defaultdict(list)
    for room, text in RULES[rule]():
        by_room[room].append(text)
    return by_room


@pytest.mark.parametrize("rule", RULES)
def test_no_room_breaks_more_rules_than_it_is_allowed(rule):
    too_many = []
    for room, found in violations(rule).items():
        if len(found) > ALLOWED.get(rule, {}).get(room, 0):
            too_many += [f"{rule}, {room}: {len(found)} found, {ALLOWED.get(rule, {}).get(room, 0)} allowed", *found]
    assert not too_many, "\n".join(dict.fromkeys(too_many))


def test_allowances_are_for_rules_that_exist():
    assert set(ALLOWED) <= set(RULES)


def test_every_rule_sees_its_violation(monkeypatch, tmp_path):
    """Each rule fails on a small package that breaks it."""
    library, lab = tmp_path / "src/wavessm", tmp_path / "lab/src/wavessm_lab"
    for folder in (library / "ops", library / "frames", lab):
        folder.mkdir(parents=True)
    (library / "ops/a.py").write_text(
        '"""Stage 1."""\nimport wavessm_lab\nfrom wavessm.nn import x\nclass Twice: ...\n'
    )
    (library / "frames/b.py").write_text('"""b"""\nclass Twice: ...\ndef long():\n' + "    x = 1\n" * 61)
    (library / "extra.py").write_text('"""extra"""\n')
    for name, value in {"ROOT": tmp_path, "LIBRARY": library, "LAB": lab, "MAX_LINES": {"src": 10, "lab": 10}}.items():
        monkeypatch.setitem(globals(), name, value)
    modules.cache_clear(), documented_methods.cache_clear()
    try:
        found = {rule: {room: len(v) for room, v in violations(rule).items()} for rule in RULES}
    finally:
        modules.cache_clear(), documented_methods.cache_clear()
    assert found == {
        "imports": {"ops": 2}, "entries": {"extra": 1}, "function length": {"frames": 1}, "package size": {"src": 1},
        "type names": {"ops": 1, "frames": 1}, "documentation": {"ops": 1, "frames": 2}, "words": {"ops": 1},
    }  # fmt: skip


def counts() -> dict[str, tuple[int, float]]:
    """Room → lines, and `raise` statements in 1,000 of them."""
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, tree in modules().items():
        found[room_of(path)][0] += len(path.read_text().splitlines())
        found[room_of(path)][1] += sum(isinstance(node, ast.Raise) for node in ast.walk(tree))
    found["src"] = [sum(values) for values in zip(*(n for room, n in found.items() if room != "lab"), strict=True)]
    return {room: (lines, 1000 * raises / lines) for room, (lines, raises) in found.items()}


if __name__ == "__main__":
    for room, (lines, raises) in counts().items():
        print(f"{room:<12}{lines:>7} lines  {raises:5.1f} raise per 1,000")
    for rule in RULES:
        for room, found in violations(rule).items():
            print(f"== {rule}: {room} {len(found)}", *dict.fromkeys(found), sep="\n   ")
