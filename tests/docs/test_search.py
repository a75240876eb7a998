"""The search of the site finds the right page first. A built site's index is searched as Sphinx's searchtools.js does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fairque_docs.keywords import KEYWORDS
from sphinx.search.en import SearchEnglish

from tests.docs.blocks import DOCS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

QUERIES = {
    "noisy neighbor": "explanation/fairness",
    "multi-tenant": "explanation/fairness",
    "rate limit": "guides/limits",
    "priority": "guides/priorities-and-limits",
    "retry": "guides/retries-and-errors",
    "dead letter": "guides/retries-and-errors",
    "background job": "guides/tasks",
    "cron": "guides/schedules",
    "periodic task": "guides/schedules",
    "exactly once": "explanation/guarantees",
    "visibility timeout": "explanation/guarantees",
    "outbox": "guides/transactions",
    "workflow": "guides/pipelines",
    "celery": "guides/from-celery",
    "rq": "guides/from-other-queues",
    "prometheus": "guides/monitoring",
    "opentelemetry": "guides/observability",
    "kubernetes": "guides/deployment",
    "heroku": "guides/production-checklists",
    "redis cluster": "guides/servers",
    "sharding": "guides/scaling",
    "pytest": "guides/testing",
    "wagtail": "guides/wagtail-and-django-tenants",
    "django-tenants": "guides/wagtail-and-django-tenants",
    "sentry": "guides/observability",
    "graceful shutdown": "guides/workers",
    "signature": "explanation/security",
    "settings": "reference/settings",
}
ENTRY = re.compile(r'<dt class="sig[^"]*"[^>]*id="([^"]+)".*?</dt>\s*<dd>(.*?)(?=<dt class="sig|</article>)', re.DOTALL)
"""An entry of the reference: its name, and its text up to the next entry."""
TITLE, PART_OF_TITLE, TERM, PART_OF_TERM, INDEX = 15, 7, 5, 2, 100
NAME, PART_OF_NAME = 11, 6
PRIORITIES = {0: 15, 1: 5, 2: -5}
"""The scores of searchtools.js."""


class Search:
    """Search the index for words in the same way as searchtools.js."""

    def __init__(self, file: Path) -> None:
        text = file.read_text()
        self._index: dict[str, Any] = json.loads(text[text.index("(") + 1 : text.rindex(")")])
        self._language = SearchEnglish({})

    def pages(self, query: str) -> list[str]:
        """The pages that are found, the best first, each once."""
        found = [*self._titles(query), *self._entries(query), *self._objects(query), *self._words(query)]
        found.sort(key=lambda result: (-result[0], result[1].lower()))
        names = [self._index["docnames"][file] for _, _, file in found]
        return list(dict.fromkeys(names))

    def _titles(self, query: str) -> Iterator[tuple[float, str, int]]:
        titles, wanted = self._index["titles"], query.lower()
        for title, places in self._index["alltitles"].items():
            if wanted in title.lower() and len(wanted) >= len(title) / 2:
                for file, _ in places:
                    yield round(TITLE * len(wanted) / len(title)) + (titles[file] == title), titles[file], file

    def _entries(self, query: str) -> Iterator[tuple[float, str, int]]:
        wanted = query.lower()
        for entry, places in self._index["indexentries"].items():
            if wanted in entry and len(wanted) >= len(entry) / 2:
                for file, _, is_main in places:
                    score = round(INDEX * len(wanted) / len(entry))
                    yield (score if is_main else score - 1000), self._index["titles"][file], file

    def _objects(self, query: str) -> Iterator[tuple[float, str, int]]:
        words = set(re.findall(r"\w+", query.lower()))
        for prefix, named in self._index["objects"].items():
            for file, kind, priority, _, name in named:
                full = f"{prefix}.{name}".lower().lstrip(".")
                text = f"{prefix} {name} {self._index['objnames'][str(kind)][2]} {self._index['titles'][file]}".lower()
                for word in words:
                    if word in full and all(other in text for other in words - {word}):
                        last = full.rpartition(".")[2]
                        score = NAME if word in (full, last) else PART_OF_NAME if word in last else 0
                        yield score + PRIORITIES.get(priority, 0), full, file

    def _words(self, query: str) -> Iterator[tuple[float, str, int]]:
        words = {
            self._language.stem(word.lower())
            for word in re.findall(r"\w+", query)
            if word.lower() not in self._language.stopwords and not word.isdigit()
        }
        scores: dict[int, dict[str, int]] = defaultdict(dict)
        for word in words:
            for kind, whole, part in (("terms", TERM, PART_OF_TERM), ("titleterms", TITLE, PART_OF_TITLE)):
                known = self._index[kind]
                matched = {word: whole} if word in known else {}
                if not matched and len(word) > 2:
                    matched = {term: part for term in known if word in term}
                for term, score in matched.items():
                    files = known[term] if isinstance(known[term], list) else [known[term]]
                    for file in files:
                        scores[file][word] = score
        for file, by_word in scores.items():
            if set(by_word) == words:
                yield max(by_word.values()), self._index["titles"][file], file


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site in the folder ``FAIRQUE_TEST_SITE``, or one that is built for the test."""
    if built := os.environ.get("FAIRQUE_TEST_SITE"):
        return Path(built)
    out = tmp_path_factory.mktemp("site")
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONDEVMODE", "PYTHONWARNINGS")}
    command = [sys.executable, "-m", "sphinx", "-q", str(DOCS), str(out)]
    subprocess.run(command, cwd=ROOT, env=plain, check=True, timeout=600)
    return out


@pytest.mark.slow
def test_the_right_page_is_found_first_and_the_reference_has_no_empty_entry(site: Path) -> None:
    """One test, so that one site is built."""
    search = Search(site / "searchindex.js")
    first = {query: "".join(search.pages(query)[:1]) for query in QUERIES}
    assert {query: page for query, page in first.items() if page != QUERIES[query]} == {}
    found = {page for query in (*QUERIES, "decision", "benchmark", "campaign") for page in search.pages(query)}
    assert [page for page in found if page.startswith(("contributing/", "changes", "development"))] == []
    entries = ENTRY.findall((site / "reference" / "python.html").read_text())
    assert len(entries) > 500
    assert [name for name, text in entries if not re.sub(r"<[^>]+>", "", text).strip()] == []


def test_search_keywords_lead_to_existing_pages_and_each_to_only_one() -> None:
    assert [page for page in KEYWORDS if not (DOCS / f"{page}.md").is_file()] == []
    words = [word for words in KEYWORDS.values() for word in words]
    assert sorted(words) == sorted(set(words))
    assert [word for word in words if word != word.lower()] == []


def test_every_query_leads_to_a_page_that_exists() -> None:
    assert [page for page in QUERIES.values() if not (DOCS / f"{page}.md").is_file()] == []
    assert len(QUERIES) >= 20
