"""What was measured, on the site: tables are made from the CSV files under results/ whenever the site is built.

    {measured} engine/cuda.csv      the words of results/README.md on this file, and the command that made it
    {measured-table} FILE           its numbers: all of them, some columns, some rows, or one quantity across two
    {runs}                          results/runs.csv through `wavessm report`'s own tables, where it exists
    {measured-rest}                 what no page asks for by name: sections of results/README.md, folders with their own

Each directive becomes Markdown, which Sphinx then reads, so the functions here return plain text.
"""

from __future__ import annotations

import csv
import html
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from sphinx.application import Sphinx

    from wavessm_lab.report.runs import Cell, Result, Variant

Rows = list[dict[str, str]]


# -- words ------------------------------------------------------------------------------------------------------


def sections(readme: str) -> dict[str, str]:
    """Heading → text of the second-level sections.

    >>> sections("# All\\n\\n## `a.csv`\\n\\nOne.\\n\\n## b\\n\\nTwo.\\n")
    {'`a.csv`': 'One.', 'b': 'Two.'}
    """
    parts = re.split(r"^## (.+)$", readme, flags=re.MULTILINE)
    return {head.strip(): text.strip() for head, text in zip(parts[1::2], parts[2::2], strict=True)}


def section_of(name: str, readme: str) -> str | None:
    """The text of the section whose heading names a file or folder."""
    for head, text in sections(readme).items():
        if f"`{name}`" in head:
            return text
    return None


def folder_words(folder: Path) -> tuple[str, str]:
    """Title and text of a folder's README; its headings become bold lines, its pictures are found from docs/."""
    title, _, text = (folder / "README.md").read_text(encoding="utf-8").partition("\n")
    text = re.sub(r"\]\(([\w.-]+\.png)\)", rf"](../results/{folder.name}/\1)", text)
    return title.removeprefix("# "), re.sub(r"^#+ (.+)$", r"**\1**", text, flags=re.MULTILINE)


def made_by(path: Path) -> str:
    """The line with command, versions and machine that stands beside a CSV; empty if there is none."""
    for note in (path.with_suffix(".md"), path.parent / "PROVENANCE.md"):
        if note.is_file():
            return " ".join(note.read_text(encoding="utf-8").split())
    return ""


# -- numbers ----------------------------------------------------------------------------------------------------


def read(path: Path, where: str = "") -> Rows:
    """The rows of a CSV for which every `column=value` of a comma-separated list holds; values may be a|b."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for condition in filter(None, (part.strip() for part in where.split(","))):
        column, _, wanted = condition.partition("=")
        rows = [row for row in rows if row[column] in wanted.split("|")]
    if not rows:
        raise ValueError(f"{path.name}: no row with {where}")
    return rows


def shown(value: str, digits: int | None) -> str:
    """A cell: nothing for NaN, numbers to so many significant digits, a bar that does not end the cell.

    >>> shown("nan", None), shown("0.123456", 3), shown("1024", 3), shown("a|b", 3)
    ('', '0.123', '1024', 'a\\\\|b')
    """
    if value == "nan":
        return ""
    if digits and re.fullmatch(r"-?\d*\.\d+(e[-+]?\d+)?", value):
        return f"{float(value):.{digits}g}"
    return value.replace("|", "\\|")


def markdown(rows: Rows, columns: list[str], digits: int | None = None) -> str:
    """A table; columns of numbers stand to the right."""

    def numeric(column: str) -> bool:
        return all(re.fullmatch(r"(-?[\d.]+(e[-+]?\d+)?|nan|inf|)", row[column]) for row in rows)

    head = "| " + " | ".join(column.replace("_", " ") for column in columns) + " |"
    rule = "|" + "|".join("---:" if numeric(column) else "---" for column in columns) + "|"
    body = ["| " + " | ".join(shown(row[column], digits) for column in columns) + " |" for row in rows]
    return "\n".join([head, rule, *body])


def small_table(path: Path, most: int = 40) -> str:
    """A CSV under its name, or nothing where it is too long to be read."""
    rows = read(path)
    return f"`{path.parent.name}/{path.name}`\n\n{markdown(rows, list(rows[0]), 4)}" if len(rows) <= most else ""


def across(rows: Rows, down: str, over: str, value: str) -> Rows:
    """One quantity in a table of two: a row for each value of `down`, a column for each of `over`.

    >>> across([{"n": "8", "f": "a", "y": "1"}, {"n": "8", "f": "b", "y": "2"}], "n", "f", "y")
    [{'n': '8', 'a': '1', 'b': '2'}]
    """
    rows = [row for row in rows if row[value] != "nan"]
    columns = dict.fromkeys(row[over] for row in rows)
    made: dict[str, dict[str, str]] = {}
    for row in rows:
        cells = made.setdefault(row[down], {down: row[down], **dict.fromkeys(columns, "")})
        if cells[row[over]]:
            raise ValueError(f"two values of {value} for {down}={row[down]}, {over}={row[over]}: add a where")
        cells[row[over]] = row[value]
    return list(made.values())


def commands(rows: Rows) -> str:
    """The commands of a table's rows, once each."""
    return "\n".join(["```text", *dict.fromkeys(row["command"] for row in rows if row["command"]), "```"])


def folded(summary: str, text: str) -> str:
    """Markdown that is shown when its summary is opened."""
    return f"<details><summary>{html.escape(summary)}</summary>\n\n{text}\n\n</details>"


# -- runs -------------------------------------------------------------------------------------------------------


def runs_page(source: Path, plots: Path) -> dict[str, str]:
    """`runs.csv` as Markdown by task: tables for each quantity, a plot, and the commands of all its runs.

    The words before the first task stand under the empty name.
    """
    from wavessm_lab.report.overview import LEGEND, overview
    from wavessm_lab.report.runs import collect, paper, read_runs, unmet
    from wavessm_lab.report.tables import plot

    rows, published = read_runs(source), paper()
    met = collect(rows)
    results = [*met.items(), *((cell, {}) for cell in unmet(met, published))]
    failed = sum(row["status"] != "ok" for row in rows)
    made = {"": f"{len(rows)} rows, {failed} of them failed runs. {LEGEND}"}
    plots.mkdir(parents=True, exist_ok=True)
    for task in dict.fromkeys(cell.task for cell, _ in results):
        of_task = [(cell, found) for cell, found in results if cell.task == task]
        parts = [
            f"**{name}**\n\n" + markdown([dict(zip(head, line, strict=True)) for line in lines], head)
            for name, head, lines in overview(dict(of_task), published)
        ]
        for group in dict.fromkeys((cell.dataset, cell.variables) for cell, _ in of_task):
            cells = {cell: found for cell, found in of_task if (cell.dataset, cell.variables) == group}
            name = "-".join(filter(None, (task, *group)))
            for cell, found in cells.items():
                said, text = of_cell(cell, found, published)
                parts.append(folded(said, text) if len(of_task) > 4 else f"**{said}**\n\n{text}")
            if run := {cell: found for cell, found in cells.items() if found}:
                picture = f"![{name}]({plot(run, published, plots / f'{name}.png')})"
                told = f"Plot of {', '.join(filter(None, group))}"
                parts.append(folded(told, picture) if len(of_task) > 4 else picture)
        if typed := [row for row in rows if row["task"] == task]:
            parts.append(folded("The commands", commands(typed)))
        made[task] = "\n\n".join(parts)
    return made


def of_cell(cell: Cell, found: dict[Variant, Result], published: dict[Cell, dict[Variant, float]]) -> tuple[str, str]:
    """One quantity: our best beside the paper's in a line, and the whole table."""
    from wavessm_lab.report.runs import HIGHER_IS_BETTER
    from wavessm_lab.report.tables import HEAD, table, title

    lines = [dict(zip(HEAD, line, strict=True)) for line in table(cell, found, published)]
    said = f"{title(cell)}: " + (f"{lines[0]['ours']} by {lines[0]['variant']}" if found else "not run")
    theirs = [float(line["paper"]) for line in lines if line["paper"]]
    if theirs:
        said += f"; best of the paper {(max if HIGHER_IS_BETTER[cell.metric] else min)(theirs):g}"
    return said, markdown(lines, HEAD)


# -- directives -------------------------------------------------------------------------------------------------


class FromResults(SphinxDirective):
    """Markdown made from files under results/, read where the directive stands."""

    has_content = False
    optional_arguments = 1
    final_argument_whitespace = True

    @property
    def results(self) -> Path:
        return Path(self.env.srcdir, self.config.measured_folder)

    def use(self, path: Path) -> Path:
        """A file whose change makes the page new."""
        self.env.note_dependency(str(path))
        return path

    def readme(self) -> str:
        return self.use(self.results / "README.md").read_text(encoding="utf-8")

    def link(self, path: Path) -> str:
        """A path as pages write it, relative to the page."""
        return os.path.relpath(path, Path(self.env.doc2path(self.env.docname)).parent)

    def run(self) -> list[nodes.Node]:
        try:
            parts = self.parts()
        except (OSError, ValueError, KeyError) as reason:
            raise self.error(f"{self.name}: {reason}") from reason
        made: list[nodes.Node] = []
        for name, text in parts.items():
            within: list[nodes.Node] = self.parse_text_to_nodes(text)
            if name:
                section = nodes.section(ids=[nodes.make_id(name)], names=[name])
                section += [nodes.title("", name.replace("`", "")), *within]
                within = [section]
            made += within
        return made

    def parts(self) -> dict[str, str]:
        """Markdown by the heading it stands under; without one under the empty name."""
        raise NotImplementedError


class Measured(FromResults):
    required_arguments = 1

    def parts(self) -> dict[str, str]:
        name = self.arguments[0]
        path = self.results / name
        if (path / "README.md").is_file():  # a folder that speaks for itself
            self.use(path / "README.md")
            return {"": folder_words(path)[1]}
        words = section_of(name, self.readme())
        if words is None:
            raise ValueError(f"results/README.md has no section `{name}`")
        if not path.is_file():
            return {"": words}
        made = made_by(self.use(path))
        picture = path.with_suffix(".png")
        parts = [words, f"`results/{name}`. {made}"]
        return {"": "\n\n".join(parts + ([f"![{name}]({self.link(picture)})"] if picture.is_file() else []))}


class Table(FromResults):
    required_arguments = 1
    option_spec: ClassVar = {
        "columns": directives.unchanged,
        "where": directives.unchanged,
        "digits": directives.positive_int,
        "across": directives.unchanged,
        "commands": directives.flag,
    }

    def parts(self) -> dict[str, str]:
        path = self.use(self.results / self.arguments[0])
        rows = read(path, self.options.get("where", ""))
        if "across" in self.options:  # down, over, value
            rows = across(rows, *(part.strip() for part in self.options["across"].split(",")))
        chosen = [part.strip() for part in self.options.get("columns", "").split(",") if part.strip()]
        made = markdown(rows, chosen or list(rows[0]), self.options.get("digits"))
        return {"": f"{made}\n\n{commands(rows)}" if "commands" in self.options else made}


class Runs(FromResults):
    def parts(self) -> dict[str, str]:
        path = self.results / "runs.csv"
        if not path.is_file():
            return {"": "`results/runs.csv` is not there yet: the runs are being made."}
        plots = Path(self.env.doctreedir) / "plots"
        made = runs_page(self.use(path), plots)
        words = section_of(path.name, self.readme()) or ""
        made[""] = f"{words}\n\n{made['']}"
        return {task: text.replace(f"]({plots}", f"]({self.link(plots)}") for task, text in made.items()}


class Rest(FromResults):
    def parts(self) -> dict[str, str]:
        pages = [path.read_text(encoding="utf-8") for path in Path(self.env.srcdir).glob("*.md")]
        named = {"runs.csv"} | set(re.findall(r"^```\{measured\} (\S+)$", "\n".join(pages), re.MULTILINE))
        rest = {
            head: text
            for head, text in sections(self.readme()).items()
            if not named & set(re.findall(r"`([^`]+)`", head))
        }
        for note in sorted(self.results.glob("*/README.md")):
            if f"{note.parent.name}/" not in named:
                title, text = folder_words(self.use(note).parent)
                tables = [small_table(self.use(path)) for path in sorted(note.parent.glob("*.csv"))]
                rest[title] = "\n\n".join([text, *filter(None, tables)])
        return rest


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("measured_folder", "../results", "env", (str,))
    for name, kind in {"measured": Measured, "measured-table": Table, "runs": Runs, "measured-rest": Rest}.items():
        app.add_directive(name, kind)
    return {"parallel_read_safe": True}
