"""Payloads and results as pages show them: without secrets, and never longer than a page can bear."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext as _

from django_fairque.conf import get_config
from django_fairque.engine.models import Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterable

HIDDEN = "••••••"
MOST_CHARACTERS = 20_000
DEEPEST = 50
"""Levels that are looked through; what lies deeper is hidden, because nobody looked at its keys."""


def redacted(value: Any, patterns: Iterable[str] | None = None) -> Any:
    """A JSON value in its shape, with `HIDDEN` for the value of each key that has one of the words in it.

    Args:
        patterns: the words, in any case; those of ``FAIRQUE["REDACT"]`` when None.
    """
    words = get_config().redact if patterns is None else patterns
    return _redacted(value, tuple(word.casefold() for word in words), DEEPEST)


def _redacted(value: Any, words: tuple[str, ...], levels: int) -> Any:
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if not levels:
        return HIDDEN
    if isinstance(value, Mapping):
        return {
            key: HIDDEN if _is_secret(key, words) else _redacted(each, words, levels - 1) for key, each in value.items()
        }
    return [_redacted(each, words, levels - 1) for each in value]


def _is_secret(key: object, words: tuple[str, ...]) -> bool:
    name = str(key).casefold()
    return any(word in name for word in words)


def as_text(value: Any) -> str:
    """A redacted value as indented JSON, of which at most `MOST_CHARACTERS` are shown, with a note that there is more.

    Of a payload that is no JSON only its length and what is wrong with it: there are no keys to redact by.
    """
    if isinstance(value, Undecodable):
        return _("%(bytes)d bytes that are not shown: %(error)s") % {"bytes": len(value.raw), "error": value.error}
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) <= MOST_CHARACTERS:
        return text
    note = _("… and %(count)d characters more") % {"count": len(text) - MOST_CHARACTERS}
    return f"{text[:MOST_CHARACTERS]}\n{note}"
