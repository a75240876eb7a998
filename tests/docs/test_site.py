"""Tests of docs/conf.py and its extension with small pages: CI builds the real pages with warnings as errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from fairque_docs.messages import MESSAGES_MARK

from tests.docs.blocks import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Build = Callable[[dict[str, str]], tuple[str, Path]]

pytestmark = pytest.mark.thorough

PLAIN = {name: value for name, value in os.environ.items() if name not in ("PYTHONDEVMODE", "PYTHONWARNINGS")}
"""With the variables that are left out, Sphinx prints warnings about its own deprecated parts."""
INDEX = "# Index\n\n```{toctree}\n:caption: Not written yet\n:glob:\n\nlater/*\n```\n\n```{toctree}\n:glob:\n\n*\n```\n"


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Build pages, given by name: what Sphinx complained of, and where the site is."""

    def run(pages: dict[str, str]) -> tuple[str, Path]:
        source, out = tmp_path / "source", tmp_path / "out"
        for name, text in {"index.md": INDEX, **pages}.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", str(DOCS), str(source), str(out)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, env=PLAIN)
        assert (done.returncode == 0) == (not done.stderr)
        return done.stderr, out

    return run


def text_of(page: Path) -> str:
    (article,) = re.findall(r"<article.*?</article>", page.read_text(), re.DOTALL)
    return re.sub(r"<[^>]+>", "", article)


def test_links_of_the_site_lead_to_the_same_place_as_on_a_code_host(build: Build) -> None:
    here = '# A\n\n[cell](#e1) [other](sub/b.md#e1) [heading](sub/b.md#two-words-code)\n\n| <a id="e1"></a>x | y |\n|---|---|\n'
    there = '# B\n\n## Two words: `code`\n\n<a id="e1"></a>\n\n[back](../a.md#e1)\n\n<a id="twice"></a>\n## Twice\n'
    complaints, site = build(
        {"a.md": here, "sub/b.md": there + "\n[c](#twice)\n", "c.md": "# C\n\n```{toctree}\nsub/b\n```\n"}
    )
    assert complaints == ""
    page = (site / "a.html").read_text()
    assert re.findall(r'<a class="reference internal" href="((?:sub/b.html)?#[\w-]+)"><span class="(?:std|xref)', page)
    assert 'href="sub/b.html#e1"' in page
    assert 'href="sub/b.html#two-words-code"' in page
    assert 'id="e1"' in page


def test_a_link_to_a_folder_leads_to_its_index_page_if_there_is_one(build: Build) -> None:
    pages = {
        "a.md": "# A\n\n[pages](sub/) [files](files/)\n\n```{toctree}\nsub/b\nsub/index\n```\n",
        "sub/b.md": "# B\n",
        "sub/index.md": "# All of them\n",
        "files/x.service": "[Unit]\n",
    }
    complaints, site = build(pages)
    assert complaints == ""
    page = (site / "a.html").read_text()
    assert 'href="sub/index.html"' in page
    assert "files</span>" in page
    assert "files/" not in page


def test_a_broken_link_or_a_page_without_a_link_fails_the_build(build: Build) -> None:
    complaints, _ = build({"a.md": "# A\n\n[1](none.md)\n[2](#nowhere)\n[3](index.md#nothing)\n", "sub/b.md": "# B\n"})
    assert "'none.md'" in complaints
    assert "'nowhere'" in complaints
    assert "'nothing'" in complaints
    assert "sub/b.md: WARNING: document isn't included in any toctree" in complaints


def test_the_reference_is_taken_from_the_code(build: Build) -> None:
    settings = "<!-- options: QUEUE -->\n| option | default | meaning |\n|---|---|---|\n| `RESULT_TTL` | 1 | kept |\n"
    complaints, site = build(
        {
            "index.md": INDEX.replace("\n*\n", "\n*\nreference/*\n"),
            "reference/settings.md": f"# Settings\n\n{settings}",
            "a.md": "# A\n\n```{fairque-command} fairque_user\n```\n\n```{fairque-contracts}\n```\n",
        }
    )
    assert complaints == ""
    assert "a number of seconds from 60 and at most 315360000 (ten years)" in text_of(
        site / "reference" / "settings.html"
    )
    text = text_of(site / "a.html")
    assert "--rate N/UNIT" in text
    assert "Lease tasks to a worker in up to limit turns" in text


def test_each_page_is_published_as_markdown_and_listed_in_the_index(build: Build) -> None:
    page = "# A\n\nWhat A is.\n\n```{fairque-command} fairque_user\n```\n\n[b](sub/b.md#c)\n"
    reference = "# B\n\n## C\n\n```{eval-rst}\n.. autofunction:: django_fairque.get_queue\n```\n"
    index = "# Index\n\nAll.\n\n```{toctree}\n:caption: Start\n:hidden:\n\na\nsub/b\n```\n"
    complaints, site = build({"index.md": index, "a.md": page, "sub/b.md": reference})
    assert complaints == ""
    text = (site / "a.md").read_text()
    assert "| `--rate N/UNIT` |" in text
    assert "[b](sub/b.md#c)" in text
    assert "**`django_fairque.get_queue(" in (site / "sub" / "b.md").read_text()
    listed = (site / "llms.txt").read_text()
    assert "\n> All.\n" in listed
    assert "## Start\n\n- [A](a.md): What A is.\n- [B](sub/b.md)\n" in listed
    head = (site / "a.html").read_text().partition("</head>")[0]
    assert '<meta name="description" content="What A is." />' in head
    assert '<link rel="alternate" type="text/markdown" href="a.md" />' in head
    assert '<meta property="og:title" content="A" />' in head
    assert '<meta property="og:description" content="What A is." />' in head
    assert "og:image" not in head  # its address is known in a build for publication only
    assert "Copyright &#169; 2026, the django_fairque authors" in (site / "a.html").read_text()


def test_pages_of_messages_are_completed_from_the_source(build: Build) -> None:
    complaints, site = build({"a.md": f"# A\n\n{MESSAGES_MARK}"})
    assert complaints == ""
    assert "relaying the outbox failed; it is tried again" in text_of(site / "a.html")
    assert "## BacklogFullError\n" in (site / "a.md").read_text()


def test_the_search_leaves_pages_for_contributors_out(build: Build) -> None:
    index = "# Index\n\n```{toctree}\na\ncontributing/b\n```\n"
    complaints, site = build({"index.md": index, "a.md": "# A\n\nalpaca\n", "contributing/b.md": "# B\n\nbuffalo\n"})
    assert complaints == ""
    index_of_search = (site / "searchindex.js").read_text()
    assert "alpaca" in index_of_search
    assert "buffalo" not in index_of_search


def test_a_site_needs_no_other_host(build: Build) -> None:
    complaints, site = build({"a.md": "# A\n\n```python\nx = 1\n```\n"})
    assert complaints == ""
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert loaded == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"url\(['\"]?https?:", style.read_text()) == [], style


USER_PAGES = {
    page.relative_to(DOCS).with_suffix("").as_posix()
    for page in [
        *DOCS.glob("*.md"),
        *(page for folder in ("guides", "explanation", "reference") for page in (DOCS / folder).rglob("*.md")),
    ]
} - {"changes", "development", "versions"}
MOST_PAGES, MOST_WORDS = 48, 1500
"""Without the recipes of the cookbook, which has a page for each."""
MOST_WORDS_IN_ALL = 45_000
KEYWORDS = re.compile(r"<!-- keywords: .* -->")


def entries(page: str) -> list[str]:
    """The entries of the tables of contents of a page."""
    tables = re.findall(r"^```\{toctree\}\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    return [line for table in tables for line in table.splitlines() if line and not line.startswith(":")]


def count_words(page: str) -> int:
    text = KEYWORDS.sub("", (DOCS / f"{page}.md").read_text())
    return sum(any(map(str.isalnum, word)) for word in text.split())


def test_the_documentation_has_few_pages_for_users() -> None:
    assert len([name for name in USER_PAGES if not name.startswith("guides/noisy-neighbors/")]) <= MOST_PAGES


def test_pages_for_users_are_short_but_for_the_reference() -> None:
    words = {name: count_words(name) for name in USER_PAGES if not name.startswith("reference/")}
    assert {name: count for name, count in words.items() if count > MOST_WORDS} == {}
    assert (
        sum(count for name, count in words.items() if name.startswith(("guides/", "explanation/", "tutorial")))
        <= MOST_WORDS_IN_ALL
    )


def test_the_sidebar_has_each_page_for_users_once_and_none_for_contributors() -> None:
    listed = entries("index.md")
    assert sorted(listed) == sorted(USER_PAGES - {"index"})


def test_the_index_for_contributors_has_each_of_their_pages() -> None:
    listed = {os.path.normpath(f"contributing/{name}") for name in entries("contributing/index.md")}
    pages = {f"contributing/{page.stem}" for page in (DOCS / "contributing").glob("*.md")} - {"contributing/index"}
    assert listed == pages | {"contributing/decisions/index", "changes", "development", "versions"}
