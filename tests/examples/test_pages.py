"""Every command that a page shows is tried; links lead somewhere; both READMEs show the same commands and figures."""

import re
import runpy

import pytest

from tests.support.assets import ROOT
from tests.support.pages import PAGES, commands, make_files, try_command, write_files

READMES = [ROOT / "README.md", ROOT / "README.zh-CN.md"]
TRANSLATED = sorted((ROOT / "docs" / "zh").glob("*.md"))
SHOWING = [page for page in PAGES if commands(page)]
_NUMBER = r"\d+(?:[.,]\d+)*"
MEASURED = rf"(?<![\w.,-]){_NUMBER}(?: - {_NUMBER})? ?(?:%|s|ms|us|ns|[KMG]i?B|tokens/s|[GT]FLOP/s)(?![\w-])"
"""Pattern of a number with a unit of measurement."""
FIGURE = re.compile(rf"{MEASURED}|\d+\.\d+")
"""A measured value, or a number with a decimal point."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with all the files that the pages' commands read."""
    return make_files(tmp_path_factory.mktemp("pages"))


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_works(page, files, monkeypatch):
    """Each command of a page runs, in the page's order; where another test has such a run, its flags are accepted."""
    monkeypatch.chdir(files)
    write_files(page, files)
    for command in commands(page):
        try_command(command)


def test_the_table_has_the_pages():
    """More than 23 pages have commands, and no command stands in an indented block or in one without a language, which
    would not be tried."""
    assert len(SHOWING) > 23
    outside = re.compile(r"^ {4}(?:python|bash|msrun|pip|torchrun) ", re.MULTILINE)
    unmarked = re.compile(r"```\n(?:python|bash|msrun|pip) ")
    for page in set(PAGES) - {ROOT / "tests/README.md"}:
        text = page.read_text(encoding="utf-8")
        assert not outside.search(re.sub(r"```.*?```", "", text, flags=re.DOTALL)) and not unmarked.search(text), page


def test_both_readmes_show_the_same():
    """README.md and README.zh-CN.md have the same commands and the same measured figures."""
    assert commands(READMES[1]) == commands(READMES[0])
    figures = [set(re.findall(r"\d+\.\d+", page.read_text(encoding="utf-8"))) for page in READMES]
    assert len(figures[0]) > 20 and figures[0] == figures[1]


def shown(page) -> dict[str, object]:
    """Everything that a page and its translation must share: commands, flags, figures, the number of headings, and the
    code in the first cell of each row of each table."""
    whole = page.read_text(encoding="utf-8")
    text = re.sub(r"```.*?```", "", whole, flags=re.DOTALL)
    return {
        "commands": commands(page),
        "flags": {*re.findall(r"--[a-z][a-z0-9_-]+", whole)},
        "figures": {*FIGURE.findall(text)},
        "headings": len(re.findall("^#", text, re.MULTILINE)),
        "rows": [re.findall(r"`[^`]+`", cell) for cell in re.findall(r"^\|(.*?)\|", text, re.MULTILINE)],
    }


def test_both_languages_of_a_page_show_the_same():
    """A page below docs/zh shows the same as the page of its name."""
    assert len(TRANSLATED) >= 25
    for page in TRANSLATED:
        ours, others = shown(page), shown(ROOT / "docs" / page.name)
        assert [(page.name, kind, ours[kind], others[kind]) for kind in ours if ours[kind] != others[kind]] == []


def test_chinese_pages_lead_to_chinese_pages():
    """Links of README.zh-CN.md and of the pages below docs/zh lead to the translation of a page that has one."""
    names = {page.name for page in TRANSLATED}
    for page in [READMES[1], *TRANSLATED]:
        links = re.findall(r"\]\(([\w./-]*?)([\w-]+\.md)", page.read_text(encoding="utf-8"))
        folder = "docs/zh/" if page in READMES else ""
        assert [name for place, name in links if name in names and place != folder] == [], page


def test_every_figure_has_its_proof():
    """Each section of a page that shows a measured value also names a test or a benchmark, or has a command."""
    measured = re.compile(MEASURED)
    proof = re.compile(r"tests/|benchmarks[/.]|python -m |```bash")
    bare, shown = [], 0
    for page in set(PAGES) - {ROOT / "CHANGELOG.md", ROOT / "docs/flags.md", ROOT / "docs/api.md"}:
        for section in re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            text = re.sub(r"```.*?```|`[^`]*`|^ {4,}\S[^\n]*", "", section, flags=re.DOTALL | re.MULTILINE)
            shown += bool(measured.search(text))
            bare += [(page.name, section[:40], found) for found in measured.findall(text) if not proof.search(section)]
    assert shown > 12 and bare == []


def test_a_page_begins_with_a_command():
    """Each page has a command before its first section heading, but the index, the table of flags and
    architecture.md."""
    without = {ROOT / "docs" / name for name in ("README.md", "flags.md", "architecture.md")}
    pages = {page for page in PAGES if page.is_relative_to(ROOT / "docs")} - without
    late = [page.name for page in pages if "```bash" not in page.read_text(encoding="utf-8").partition("\n## ")[0]]
    assert len(pages) > 40 and late == []


def test_the_first_page_is_short():
    """Both READMEs have at most 130 lines; details have pages."""
    assert all(len(page.read_text(encoding="utf-8").splitlines()) <= 130 for page in READMES)


def anchors(page) -> set[str]:
    """The anchors of a page's headings, as links spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_and_paths_lead_somewhere():
    """Links to files and headings of all pages, and paths in code quotes that begin with one of our folders, exist."""
    targets, lost = 0, []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if not link.startswith("http"):
                targets += 1
                fits = target.exists() and (not anchor or anchor in anchors(target))
                lost += [] if fits else [(page.name, link)]
        for path in re.findall(r"`((?:mapping|parallel_core|pynative|examples|benchmarks|tests|docs)/[\w./-]*)`", text):
            targets += 1
            lost += [] if (ROOT / path).exists() or (ROOT / f"{path}.py").exists() else [(page.name, path)]
    assert targets > 50 and lost == []


def test_the_index_has_every_page():
    """docs/README.md links every page below docs."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert [page for page in pages if f"({page})" not in index and page != "README.md"] == []


def test_the_reference_has_the_sources_signatures():
    """Headings and signatures of docs/api.md are the sources'; its sentences are not compared, as each build of the
    site writes them anew."""
    page = runpy.run_path(str(ROOT / "docs" / "make_api.py"))["page"]()
    shown = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    found = [re.findall(r"^### .*|```python\n.*", text, re.MULTILINE) for text in (page, shown)]
    assert len(found[0]) > 40 and found[0] == found[1], "python docs/make_api.py writes it"


def test_troubleshooting_names_messages_that_exist():
    """Each quoted part of an error message on the troubleshooting page stands in the sources."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    folders = ("mapping", "parallel_core", "pynative", "examples")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".sh")]
    sources = " ".join(path.read_text(encoding="utf-8") for path in files)
    sources = re.sub(r"\s+", " ", re.sub(r'"\s*\\?\s*f?"', "", sources))
    messages = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    quoted = [part for message in messages for part in re.split("`[^`]*`|; ", message.strip().strip("`"))]
    assert len(quoted) > 25 and [part for part in quoted if part.strip() not in sources] == []
