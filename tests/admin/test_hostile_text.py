"""No text from a queue becomes markup in any page: the pages are read as a browser reads them, with harmless words and
with `CORPUS` in their place, and have the same elements and attributes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.admin.utils import quote
from django.urls import resolve, reverse

from django_fairque.admin.site import PAGES
from django_fairque.engine.inspection.task_logs import LogLine
from django_fairque.engine.model.errors import FairQueueError
from django_fairque.engine.model.limits import TaskLimit
from django_fairque.engine.model.task import Task
from tests.admin.dead_letters import bury
from tests.admin.hostile_names import CORPUS
from tests.admin.page_reader import page_url
from tests.fixture_types import Client, FairQueue

pytestmark = pytest.mark.django_db

SLICE = 13
"""Strings that are in the queue at once: more than one, so that each page has them in a list."""
OF_EACH = 13
"""Pages of one kind (the view, and what its query asks) that are read at most."""
HARMLESS = ["acme", "bolt", "api_token", "word " * 30, "one\ntwo"]
"""Each kind of text that a page may show in another way: a secret, something long, several lines."""
LINKS = ("href", "src", "action", "formaction", "xlink:href", "data", "poster")


ACTIONS = [
    *(("users", "user", "purge"), ("users", "user", "pause"), ("users", "user", "limits")),
    *(("organizations", "organization", "pause"), ("organizations", "organization", "settings")),
    *(("limits", "limit", "close"), ("limits", "limit", "open")),
    *(("schedules", "name", "remove"), ("schedules", "name", "disable")),
    *(("workers", "worker", "stop"), ("workers", "worker", "drain"), ("tasks", "task", "cancel")),
]
"""Questions and messages that name a thing."""


@dataclass
class Read(HTMLParser):
    """A page as a browser reads it."""

    text: str
    elements: set[tuple[str, str]] = field(default_factory=set)
    """Every element with each of its attributes' names; with ``""`` for the element itself."""
    tags: Counter[str] = field(default_factory=Counter)
    links: set[str] = field(default_factory=set)
    words: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.elements |= {(tag, ""), *((tag, name) for name, _ in attrs)}
        self.words += [value for _, value in attrs if value]
        self.links |= {value for name, value in attrs if name in LINKS and value}

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def handle_comment(self, data: str) -> None:
        self.elements.add(("<!--", data.strip()[:40]))

    def handle_decl(self, decl: str) -> None:
        self.elements.add(("<!", decl))

    def unknown_decl(self, data: str) -> None:
        self.elements.add(("<![", data))

    def handle_pi(self, data: str) -> None:
        self.elements.add(("<?", data))


def fill(queue: FairQueue, strings: Sequence[str]) -> list[str]:
    """Everything that has a name or a text is called by each of the strings; returns the dead letters."""
    entries = []
    for number, text in enumerate(strings):
        task_id = f"{number}{text}"[:200]
        entries += accepted(lambda: bury(queue, text, user_id=text, name=text, payload={text: [text]}, task_id=task_id))  # noqa: B023
        for step in steps(queue, text):
            accepted(step)
    return entries


def steps(queue: FairQueue, text: str) -> Iterator[Callable[[], Any]]:
    """One thing each that may be refused: the engine says what can be a name."""

    def make(user: str = text, **options: Any) -> Task:
        return Task.create(user, 3, {text: {text: text}}, **{"name": text, **options})

    def run(end: Callable[[Any], Any]) -> None:
        task = make()
        queue.push(task)
        for lease in queue.pop_batch(1, text, [task.user_id]):
            end(lease)

    yield lambda: run(lambda lease: queue.finish(lease, {text: text}))
    yield lambda: run(lambda lease: queue.fail(lease, text))
    yield lambda: run(lambda lease: queue.set_progress(lease, 1, 2, text))
    yield lambda: run(lambda lease: queue.logs.record(lease, [LogLine(1.0, text, text, text)]))
    yield lambda: queue.heartbeat(text, {"host": text, "version": text})
    yield lambda: queue.schedules.add(text, task=make(), cron="*/5 * * * *")
    yield lambda: queue.push(make())
    yield lambda: queue.user(text).set_organization(text)
    yield lambda: queue.limit(text).close()
    yield lambda: queue.push(make(limits=[TaskLimit(text, 1)]))
    parent, canceled = make(user="acme"), make()
    yield lambda: queue.push_batch([parent, make(depends_on=[parent.task_id]), canceled])
    yield lambda: queue.push_graph([make()], text)
    yield lambda: queue.cancel(canceled.task_id, reason=text)
    yield lambda: queue.push(make(execute_after=4_000_000_000.0))


def accepted(step: Callable[[], Any]) -> list[Any]:
    try:
        return [step()]
    except (FairQueueError, ValueError):
        return []


def crawl(client: Client, others: Sequence[str]) -> Iterator[tuple[str, Read]]:
    """Every page of the queues that links lead to, a few of each kind, and these."""
    waiting = [page_url(page.name) for page in PAGES if "<" not in page.path]
    base = reverse("admin:django_fairque_queue_changelist")
    waiting += others
    seen: set[str] = set()
    kinds: Counter[tuple[Any, ...]] = Counter()
    while waiting:
        url = waiting.pop(0)
        if url in seen or not url.startswith(base):
            continue
        seen.add(url)
        parts = urlsplit(url)
        kind = (resolve(parts.path).url_name, tuple(sorted(parse_qs(parts.query))))
        kinds[kind] += 1
        if kinds[kind] > OF_EACH:
            continue
        answer = client.get(url)
        assert answer.status_code == 200, url
        page = Read(answer.content.decode())
        yield url, page
        waiting += sorted(link for link in page.links if link.startswith("/"))


def act_on(client: Client, entries: Sequence[str], strings: Sequence[str]) -> Iterator[tuple[str, Read]]:
    """Read the pages before and after actions on dead letters and other things, and the audit trail of them."""
    for page, name, action in ACTIONS:
        for text in strings[:3]:
            answer = client.post(page_url(page), {name: text, "action": action}, follow=True)
            yield f"{action} {text}", Read(answer.content.decode())
    letters = page_url("dead_letters")
    for entry in entries:
        letter = page_url("dead_letter", entry)
        for url, data in (
            (letter, {"action": "edit"}),
            (letter, {"action": "discard"}),
            (letter, {"action": "requeue_edited", "payload": entry}),
            (letters, {"action": "discard", "entry": entry}),
            (f"{letters}?name={quote(entry)}", {"action": "requeue_all"}),
        ):
            yield f"{data['action']} {url}", Read(client.post(url, data).content.decode())
        yield "requeue", Read(client.post(letter, {"action": "requeue"}, follow=True).content.decode())
    yield "index", Read(client.get(reverse("admin:index")).content.decode())


def all_pages(client: Client, queue: FairQueue, strings: Sequence[str]) -> Iterator[tuple[str, Read]]:
    entries = fill(queue, strings)
    letters = page_url("dead_letters")
    yield from crawl(client, [f"{letters}?show=letters"])
    yield from act_on(client, entries[:3], strings)


@pytest.mark.parametrize("text", ["<script>", "<p onclick=x>", "<a href=javascript:x>", "<!--x-->", "<svg/onload=x>"])
def test_markup_in_a_page_is_seen_by_the_reader(text: str) -> None:
    assert not Read(f"<p>{text}</p>").elements <= Read("<p>word</p>").elements


def test_escaped_text_is_no_markup_for_the_reader() -> None:
    page = Read("<p title='&lt;b&gt;'>&lt;script&gt;</p>")
    assert (page.elements, page.words) == (Read("<p title=x></p>").elements, ["<b>", "<script>"])


def test_the_corpus_is_large() -> None:
    assert len(CORPUS) == len(set(CORPUS)) >= 200


_written: set[tuple[str, str]] = set()


@pytest.fixture
def written(admin_client: Client, queue: FairQueue, redis: Any) -> set[tuple[str, str]]:
    """The elements and attributes of the templates; read once."""
    if not _written:
        for _url, page in all_pages(admin_client, queue, HARMLESS):
            _written.update(page.elements)
        _written.add(("a", "rel"))  # lists of many tasks have a link to a next page, lists of few tasks have none
        redis.flushall()
    return _written


SLICES = [CORPUS[at :: -(-len(CORPUS) // SLICE)] for at in range(-(-len(CORPUS) // SLICE))]
"""Each with a little of every kind. They take ten seconds each."""


@pytest.mark.slow
@pytest.mark.parametrize("strings", SLICES, ids=lambda part: "")
def test_hostile_text_stays_text(
    admin_client: Client, queue: FairQueue, written: set[tuple[str, str]], strings: list[str]
) -> None:
    words: list[str] = []
    for url, page in all_pages(admin_client, queue, strings):
        assert page.elements <= written, f"{url} has what no template wrote: {page.elements - written}"
        bad = {link for link in page.links if not re.match(r"[/?#]|https?://testserver/|https://docs\.", link)}
        assert not bad, f"{url} leads to {bad}"
        assert not {link for link in page.links if link.startswith(("//", "/\\"))}, url
        words += page.words
    shown = "\0\0".join(words)
    missing = [text for text in strings if len(text) < 150 and text not in shown and not is_refused(text)]
    assert missing == []


def is_refused(text: str) -> bool:
    """Whether the engine lets no user be called so."""
    return not accepted(lambda: Task.create(text, 3, None))


@pytest.mark.thorough
def test_a_script_in_a_name_is_escaped_on_every_page(admin_client: Client, queue: FairQueue) -> None:
    script = CORPUS[0]
    entries = fill(queue, [script])
    queries = [{"user": script}, {"organization": script}, {"run": script}, {"edit": script}, {"name": script}]
    pages = [page_url(page.name, **query) for page in PAGES if "<" not in page.path for query in ({}, *queries)]
    pages += [
        page_url("run", script),
        page_url("task", entries[0].removesuffix("~1")),
        page_url("dead_letter", entries[0]),
    ]
    texts = [admin_client.get(page, follow=True).content.decode() for page in pages]
    texts += [page.text for _, page in act_on(admin_client, entries, [script])]
    assert [text for text in texts if script in text] == []
    assert sum(escape(script) in text for text in texts) > len(texts) / 2
