"""The documentation site: built offline without warnings, complete, and standing on its own; its snippets run."""

import csv
import pydoc
import re
import runpy
import subprocess
import sys
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import wavessm as ws
from test_cli import obey
from test_report import RUNS, written

pytest.importorskip("sphinx", reason="the site needs the extra docs")

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
OFFLINE = """
import socket, sys
def refuse(*given, **named):
    raise OSError("the site asked for a network")
socket.getaddrinfo = socket.create_connection = socket.socket.connect = refuse
from sphinx.cmd.build import main
sys.exit(main(sys.argv[1:]))
"""


def build(source, out):
    """The site in `out`, in a process that cannot reach a network; what it said."""
    options = ["-W", "--keep-going", "-n", "-q", "-d", str(out / "doctrees"), str(source), str(out / "html")]
    done = subprocess.run([sys.executable, "-c", OFFLINE, *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"the build says:\n{done.stderr or done.stdout}"
    return out / "html"


# -- reading pages ------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """What a page loads, links to and can be linked at."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.ids = [], [], set()
        self.feed(text)
        self.loads += re.findall(r"url\(\s*['\"]?([^'\")]+)", text)
        self.loads += re.findall(r"(?:import|fetch)\(\s*['\"]([^'\"]+)", text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.ids |= {value for name, value in attrs if name in ("id", "name")}
        if tag == "a":
            self.links += [given["href"]] if "href" in given else []
        else:
            self.loads += [value for name, value in attrs if name in ("src", "href", "data", "srcset", "poster")]


def foreign(addresses):
    """Those that lie on another host; data: and # are part of the page."""
    return [a for a in addresses if a and (urlsplit(a).netloc or urlsplit(a).scheme not in ("", "data"))]


def broken(pages):
    """(page, link) for links within the site that lead nowhere; `pages` maps paths to what is on them."""
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = pages.get(target)
            if not target.exists() or (parts.fragment and there and unquote(parts.fragment) not in there.ids):
                lost.append((path.name, link))
    return lost


def test_what_a_page_loads_from_elsewhere_is_seen():
    text = """<link rel="stylesheet" href="https://fonts.example/a.css"><script src="//cdn.example/x.js"></script>
    <style>@font-face {src: url(http://fonts.example/b.woff)}</style><img src="here.png"><img src="data:image/png,A">
    <a href="https://example.org">a link is no load</a><script>import("https://cdn.example/y.js")</script>"""
    assert len(foreign(Page(text).loads)) == 4


def test_links_that_lead_nowhere_are_seen(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>')
    (tmp_path / "b.html").write_text('<p id="there"><a href="#there">4</a><a href="#lost">5</a>')
    pages = {path: Page(path.read_text()) for path in tmp_path.glob("*.html")}
    assert {link for _, link in broken(pages)} == {"b.html#gone", "c.html", "#lost"}


# -- the site -----------------------------------------------------------------------------------------------------


def test_site_builds_offline_without_warnings_loads_nothing_from_elsewhere_and_has_no_dead_link(tmp_path):
    site = build(DOCS, tmp_path)
    texts = {path: path.read_text() for path in site.rglob("*.html")}
    pages = {path: Page(text) for path, text in texts.items()}
    assert len(pages) > 30

    elsewhere = {path.name: found for path, page in pages.items() if (found := foreign(page.loads))}
    assert not elsewhere, "pages load from other hosts"
    for sheet in site.rglob("*.css"):
        assert not foreign(Page(sheet.read_text()).loads), f"{sheet.name} loads from another host"
    assert not broken(pages), "links lead nowhere"

    assert texts[site / "theory.html"].count("<math") >= 4, "formulas are MathML"
    assert not re.search(r"<script[^>]*(mathjax|katex)", "".join(texts.values()), re.IGNORECASE)
    assert "$" not in re.sub(r"<(script|pre|style).*?</\1>", "", texts[site / "concepts.html"], flags=re.DOTALL)

    listed = set(re.findall(r'id="(wavessm\.\w+)"', "".join(texts.values())))
    missing = {f"wavessm.{name}" for name in ws.__all__} - listed
    assert not missing, "public names without an entry under docs/api"

    with (ROOT / "results/engine/ptbxl.csv").open() as file:
        for row in csv.DictReader(file):
            assert f">{row['step_ms']}<" in re.sub(r"</?p>", "", texts[site / "benchmarks.html"]), "numbers of the CSV"


def test_runs_appear_beside_the_papers_numbers_with_plot_and_commands(tmp_path):
    source, results = tmp_path / "source", tmp_path / "results"
    source.mkdir()
    results.mkdir()
    (results / "README.md").write_text(
        "# Measured\n\n## `runs.csv`\n\nWords on runs.\n\n## `other.csv`\n\nOther words.\n"
    )
    (results / "tuned").mkdir()
    (results / "tuned/README.md").write_text("# Tuned\n\nHow it was.\n\n## Tried\n\nThis.\n")
    (results / "tuned/tried.csv").write_text("rate,score\n0.1,0.70312\n")
    command = "wavessm train ptbxl-super-diag --family db6 --seed 0"
    written(results / "runs.csv", [{**RUNS[0], "command": command}, *RUNS[1:]])
    (source / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DOCS / '_ext')!r})\nextensions = ['myst_parser', 'measured']\n"
    )
    (source / "index.md").write_text("# Results\n\n## Runs\n\n```{runs}\n```\n\n## More\n\n```{measured-rest}\n```\n")
    site = build(source, tmp_path)
    text = re.sub(r"</?p>", "", (site / "index.html").read_text())
    assert text.count("Words on runs.") == text.count("Other words.") == 1
    for cell in ("0.9360 ± 0.0010", "better", "0.931", "wavessm db6 scaled (best)", "1 of them failed"):
        assert cell in text, cell
    assert command in text
    assert len(list((site / "_images").glob("*.png"))) == 2, "a plot for each of the two tasks"
    order = [text.index(words) for words in ('id="runs"', "Words on runs.", "8 rows", 'id="forecast"', "Other words.",
                                           'id="tuned"', "<strong>Tried</strong>", "0.7031<")]  # fmt: skip
    assert order == sorted(order), "each under its heading"


# -- the sources --------------------------------------------------------------------------------------------------


def fences(text):
    """Name → contents of the fences of a page."""
    found = defaultdict(list)
    for name, content in re.findall(r"^```([^\n]*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
        found[name].append(content)
    return found


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), ROOT / "README.md"], ids=lambda path: path.name)
def test_python_snippets_stand_in_fences_so_that_they_are_readable_everywhere(page):
    text = page.read_text()
    fenced = sum(content.count("\n>>> ") + content.startswith(">>> ") for content in fences(text)["pycon"])
    assert fenced == len(re.findall(r"^>>> ", text, flags=re.MULTILINE)), (
        "put >>> into ```pycon, a blank line at its end"
    )


def test_shell_lines_of_the_guides_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("start", "classify", "stream", "forecast", "pretrained"):  # in order: later ones use earlier runs
        for block in fences((DOCS / f"{name}.md").read_text())["sh"]:
            for line in block.splitlines():
                if line == "python examples/forecast_csv.py":  # test_examples.py runs it whole; here its file will do
                    runpy.run_path(str(ROOT / "examples/forecast_csv.py"))["write_example"](Path("load.csv"))
                    continue
                assert obey(line, monkeypatch) == 0, f"{name}.md: {line}"
    said = capsys.readouterr().out
    accuracy = float(re.search(r"accuracy {4,}(\d\.\d+)", said)[1])
    assert accuracy > 0.8, "a third would be chance"
    assert (tmp_path / "predictions.png").exists()
    assert len((tmp_path / "stream.csv").read_text().splitlines()) == 3
    assert len((tmp_path / "next.csv").read_text().splitlines()) == 25
    assert said.count("low 0.") == 10, "the exported stream answers ten times"


def test_names_of_the_reference_exist():
    for page in (DOCS / "api").glob("*.rst"):
        for name in re.findall(r"^\.\. auto(?:class|function|data):: (wavessm[\w.]+)", page.read_text(), re.MULTILINE):
            assert pydoc.locate(name) is not None, f"{page.name}: {name}"


def test_files_that_contributing_names_exist():
    text = (DOCS / "contributing.md").read_text()
    named = set(re.findall(r"`((?:cli|data|export|frames|nn|ops|training)/[\w/.]*)`", text))
    missing = [name for name in named if not (ROOT / "src/wavessm" / name).exists()]
    assert len(named) > 15
    assert not missing


def test_the_presets_have_as_many_parameters_as_the_page_says():
    table = (DOCS / "models.md").read_text().partition("## Presets")[2]
    said = {
        name: int(line.rsplit("|", 2)[1].replace(",", ""))
        for line in table.splitlines()
        for name in re.findall(r"`(wavessm-[\w-]+)`", line)
    }
    assert said == {name: sum(p.numel() for p in ws.create_model(name).parameters()) for name in ws.presets()}
