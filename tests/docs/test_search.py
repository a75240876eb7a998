"""The search finds the page that answers a question: on the site as at the terminal, with one index."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fairque_docs.search_index import FILE, search_index

from django_fairque.management.page_search import search, user_pages
from tests.docs.blocks import DOCS, ROOT
from tests.docs.questions import QUESTIONS
from tests.docs.test_site import PLAIN

QUERIES = {
    "noisy neighbor": "guides/noisy-neighbors",
    "webhook storm": "guides/noisy-neighbors/webhooks",
    "tokens per minute": "guides/noisy-neighbors/tokens",
    "external API quota": "guides/noisy-neighbors/quota",
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
    "huey": "guides/from-huey",
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
    "simulation": "playground",
}
MOST_MISSED = 4
"""Questions whose page may be after the third."""
ENTRY = re.compile(r'<dt class="sig[^"]*"[^>]*id="([^"]+)".*?</dt>\s*<dd>(.*?)(?=<dt class="sig|</article>)', re.DOTALL)
"""A class, function or attribute in the reference: its name, and its text up to the next one."""
ROW = re.compile(r'<tr class="row-\w+"><td>(?!<p><a class="reference internal" href="#)')
"""A row of a table, such as a setting. Rows that link to a section of the same page are its contents, not entries."""
MOST_ENTRIES = 300
"""Entries on one page of the reference."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site in the folder ``FAIRQUE_TEST_SITE``, or one that is built for the test."""
    if built := os.environ.get("FAIRQUE_TEST_SITE"):
        return Path(built)
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", str(DOCS), str(out)]
    subprocess.run(command, cwd=ROOT, env=PLAIN, check=True, timeout=600)
    return out


def pages(question: str) -> list[str]:
    return [part.page for part in search(question)]


def test_the_right_page_is_first_for_a_word_of_the_field() -> None:
    first = {query: pages(query)[0] for query in QUERIES}
    assert {query: page for query, page in first.items() if page != QUERIES[query]} == {}


def test_a_typed_question_has_its_page_among_the_first_three() -> None:
    missed = {
        question: pages(question)[:3] for question in QUESTIONS if not QUESTIONS[question] & {*pages(question)[:3]}
    }
    assert len(QUESTIONS) == 40
    assert len(missed) <= MOST_MISSED, missed


def test_every_page_that_answers_exists() -> None:
    named = {*QUERIES.values()}.union(*QUESTIONS.values())
    assert [page for page in named if not (DOCS / f"{page}.md").is_file()] == []


@pytest.mark.parametrize(
    ("question", "page"),
    [
        ("retrying", "guides/retries-and-errors"),
        ("how do I do RETRIES?", "guides/retries-and-errors"),
        ("visibility timeout qzxqzx", "explanation/guarantees"),
        ('"backpressure" OR (queue NEAR full)', "guides/priorities-and-limits"),
    ],
    ids=["another form of a word", "words without a topic", "an unknown word", "signs of a query language"],
)
def test_a_question_may_be_typed_in_any_way(question: str, page: str) -> None:
    assert page in pages(question)[:3]


@pytest.mark.parametrize("question", ["", "how do I", "%%%", "qzxqzx", "5"])
def test_a_question_without_a_known_word_finds_nothing(question: str) -> None:
    assert pages(question) == []


def test_pages_for_contributors_are_not_searched() -> None:
    assert not any(page.startswith(("contributing", "changes", "development", "versions")) for page in user_pages())


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js, which runs the site's script")
def test_the_site_ranks_pages_as_the_command_does(tmp_path: Path) -> None:
    index = tmp_path / "index.js"
    index.write_text(f"const Search = {{}};\nconst FairqueIndex = {json.dumps(search_index())};\n")
    ask = f"console.log(JSON.stringify({json.dumps([*QUESTIONS, *QUERIES])}.map(q => findPages(q).reverse().map(r => r[0]))));"
    program = tmp_path / "program.js"
    program.write_text(index.read_text() + (DOCS / "_static" / "search.js").read_text() + ask)
    done = subprocess.run(["node", str(program)], capture_output=True, text=True, check=True, timeout=60)
    found = dict(zip([*QUESTIONS, *QUERIES], json.loads(done.stdout), strict=True))
    assert {question: names[:3] for question, names in found.items()} == {name: pages(name)[:3] for name in found}


@pytest.mark.slow
def test_the_site_loads_the_index_and_its_reference_has_short_pages_without_empty_entries(site: Path) -> None:
    """One test, so that one site is built."""
    text = (site / "search.html").read_text()
    scripts = [text.index(name) for name in ("searchtools.js", "searchindex.js")]
    assert f"_static/{FILE}" in text
    assert '<script defer="defer" src="_static/search.js' in text
    assert scripts
    assert (site / "_static" / FILE).read_text().startswith("const FairqueIndex = {")
    reference = {page.stem: page.read_text() for page in (site / "reference").glob("*.html")}
    entries = [entry for page in reference.values() for entry in ENTRY.findall(page)]
    assert len(entries) > 500
    assert [name for name, text in entries if not re.sub(r"<[^>]+>", "", text).strip()] == []
    counts = {name: len(ENTRY.findall(page)) + len(ROW.findall(page)) for name, page in reference.items()}
    assert {name: count for name, count in counts.items() if count > MOST_ENTRIES} == {}
