"""The settings that pages show can be pasted into one ``settings.py``, in any order, after any of the first pages."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from django_fairque.conf import get_config
from tests.docs import blocks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pytest_django import Settings

FIRST = [blocks.ROOT / "README.md", blocks.DOCS / "quickstart.md", blocks.DOCS / "tutorial.md"]
PAGES = [*FIRST, *(page for part in ("guides", "reference") for page in sorted((blocks.DOCS / part).rglob("*.md")))]
ADDED_TO = ("FAIRQUE", "INSTALLED_APPS", "MIDDLEWARE", "SILENCED_SYSTEM_CHECKS", "TASKS", "CACHES")
# Settings of Django that the pages add to, and that a new project lacks: the reader has them, or begins with an empty one.
DECLARED = {
    "CACHES": {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    "TASKS": {},
}
ENVIRONMENT = {
    "REDIS_URL": "rediss://queue.example:6379",
    "VALKEY_PASSWORD": "a-password",
    "ALERT_WEBHOOK": "https://chat.example/hook",
    "METRICS_TOKEN": "a-token-of-24-characters",
}
USES_SETTINGS = re.compile(rf"^(?:{'|'.join([*ADDED_TO, *DECLARED])})\b", re.MULTILINE)


def settings_blocks(page: Path) -> list[blocks.Example]:
    """Blocks that are marked as not run count too: a reader pastes them."""
    return [example for example in blocks.examples(page) if USES_SETTINGS.search(example.code)]


BEGINNINGS = [settings_blocks(page)[0] for page in FIRST]
ADDITIONS = [example for page in PAGES for example in settings_blocks(page) if example not in BEGINNINGS]


@pytest.fixture
def new_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings that ``startproject`` writes."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    call_command("startproject", "shop", tmp_path)
    file = tmp_path / "shop" / "settings.py"
    names: dict[str, Any] = {"__file__": str(file)}
    exec(file.read_text(), names)
    del names["__builtins__"]
    return names | DECLARED


def pasted(project: dict[str, Any], examples: Iterable[blocks.Example]) -> dict[str, Any]:
    names = copy.deepcopy(project)
    for example in examples:
        try:
            example.run(names)
        except Exception as error:
            raise AssertionError(f"{example.place} does not work here: {error!r}") from error
        del names["__builtins__"]
    return names


def merged(old: Any, new: Any, path: tuple[str, ...] = ()) -> Any:
    """Both settings: dictionaries and lists have the entries of both, and otherwise the new one counts.

    ``REDIS`` is one value, because a project has one server, and options of two servers do not belong together.
    """
    if isinstance(old, dict) and isinstance(new, dict) and path != ("FAIRQUE", "REDIS"):
        return old | {key: merged(old.get(key), value, (*path, key)) for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        return old + [item for item in new if item not in old]
    return new


def in_any_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_any_order(item) for key, item in value.items()}
    return sorted(map(str, value)) if isinstance(value, list) else value


def check(project: dict[str, Any], beginning: blocks.Example, additions: list[blocks.Example]) -> dict[str, Any]:
    """Paste all of them, and compare the settings with those of each addition alone. Returns the settings."""
    expected = {key: pasted(project, [beginning])[key] for key in ADDED_TO if key != "SILENCED_SYSTEM_CHECKS"}
    for example in additions:
        alone = pasted(project, [beginning, example])
        expected = merged(expected, {key: alone[key] for key in ADDED_TO if key in alone})
    found = pasted(project, [beginning, *additions])
    if silenced := found.get("SILENCED_SYSTEM_CHECKS"):
        found["SILENCED_SYSTEM_CHECKS"] = list(set(silenced))  # Django accepts a number twice
    assert in_any_order({key: found[key] for key in expected}) == in_any_order(expected)
    return found


@pytest.mark.parametrize("step", [1, -1], ids=["as the pages are", "from the end"])
@pytest.mark.parametrize("beginning", BEGINNINGS, ids=lambda example: blocks.name(example.page))
def test_pasting_all_settings_examples_of_the_docs_keeps_the_settings_of_each(
    new_project: dict[str, Any], beginning: blocks.Example, step: int, settings: Settings
) -> None:
    names = check(new_project, beginning, ADDITIONS[::step])
    settings.CACHES = names["CACHES"]
    # Pages describe several servers; which one a project has decides what else it can set.
    settings.FAIRQUE = names["FAIRQUE"] | {"REDIS": {"URL": ENVIRONMENT["REDIS_URL"], "CLUSTER": True}}
    config = get_config()
    assert {"default", "mail", "long", "high", "index"} <= set(config.queues)


def test_blocks_of_settings_name_their_file() -> None:
    every = [*BEGINNINGS, *ADDITIONS]
    assert [block.place for block in every if not block.code.startswith("# shop/settings.py\n")] == []


def test_pages_name_the_settings_to_which_theirs_are_added() -> None:
    adding = {addition.page for addition in ADDITIONS if "FAIRQUE" in addition.code}
    assert [blocks.name(page) for page in sorted(adding) if "FAIRQUE = {}" not in page.read_text()] == []
    adding = {addition.page for addition in ADDITIONS if "TASKS" in addition.code}
    assert [blocks.name(page) for page in sorted(adding) if "TASKS = {}" not in page.read_text()] == []


@pytest.mark.parametrize(
    "code", ['FAIRQUE["QUEUE"] = {"LEASE_SECONDS": 60}\n', "FAIRQUE = {}\n", 'INSTALLED_APPS += ["django_fairque"]\n']
)
def test_a_block_that_overwrites_or_repeats_is_found(new_project: dict[str, Any], code: str) -> None:
    other = blocks.Example(PAGES[0], 1, code, None)
    first = blocks.Example(PAGES[0], 1, 'FAIRQUE.setdefault("QUEUE", {})["SHARDS"] = 2\n', None)
    with pytest.raises(AssertionError, match=r"FAIRQUE|INSTALLED_APPS"):
        check(new_project, BEGINNINGS[1], [first, other])
