"""README and documentation promise only what is there."""

from __future__ import annotations

import re
import runpy
from functools import cache
from pathlib import Path

import pytest
from django.core.management import get_commands

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@pytest.fixture(scope="module")
def commands() -> dict[str, str]:
    """README's commands, read as CI reads them."""
    found: dict[str, str] = runpy.run_path(str(ROOT / ".ci" / "readme_command.py"))["readme_commands"]()
    return found


def test_ci_runs_every_command_of_the_readme(commands: dict[str, str]) -> None:
    run = re.findall(r"\$\(readme_command ([\w-]+)\)", (ROOT / ".ci" / "run").read_text())
    marked = re.findall(r"<!-- command: ([\w-]+) -->", (ROOT / "README.md").read_text())
    assert {"demo", "test"} <= set(marked)
    assert sorted(run) == sorted(marked) == sorted(commands)


def test_scripts_in_commands_of_the_readme_exist(commands: dict[str, str]) -> None:
    for command in commands.values():
        for script, subcommand in re.findall(r"(\S+\.py)(?: (\w+))?", command):
            assert (ROOT / script).is_file()
            assert not subcommand or subcommand in get_commands()


def test_links_lead_to_files_and_headings() -> None:
    links = [(page, target) for page in PAGES for target in local_links(page.read_text())]
    assert [(page.name, target) for page, target in links if not leads_somewhere(page, target)] == []


def test_the_test_of_links_finds_broken_ones() -> None:
    readme = ROOT / "README.md"
    text = "[a](no-such-file.md) ![b](no-such.png) [c](https://example.org) [d](#no-such-heading) [e](LICENSE)"
    assert [link for link in local_links(text) if not leads_somewhere(readme, link)] == [
        "no-such-file.md",
        "#no-such-heading",
    ]


def local_links(text: str) -> list[str]:
    """The links that lead into this repository, those in code left out."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)
    return [match["target"] for match in LINK.finditer(prose) if not re.match(r"[a-z]+:", match["target"])]


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, heading = target.partition("#")
    file = (page.parent / path) if path else page
    return file.exists() and (not heading or heading in headings(file))


@cache
def headings(page: Path) -> set[str]:
    """The anchors that a page's headings get (lower case, punctuation dropped, blanks to dashes), and those it sets itself."""
    text = page.read_text()
    titles = re.findall(r"^#+ +(.+)$", text, flags=re.MULTILINE)
    anchors = re.findall(r'<a id="([\w-]+)"></a>', text)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles} | set(anchors)
