"""Prepares payloads, results and errors for people: without secrets, and short enough for a page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from django.utils.translation import gettext as _

from django_fairque.conf import get_config
from django_fairque.engine.model.errors import ConfigurationError
from django_fairque.engine.model.task import Task, Undecodable
from django_fairque.monitoring.formatting import number

HIDDEN = "••••••"
TEXT_MAX_CHARACTERS = 20_000
REDACTION_MAX_DEPTH = 50
"""Maximum depth of nested values that are searched for secrets. Deeper values are hidden, because their keys are not
searched."""

_LOGIN = re.compile(r"(?<=://)[^\s/\"'<>]*(?=@)")
"""The part of a URL with a user name, a password or a token."""
_BEARER = re.compile(r"(?i)(\bBearer[ \t]+)[\w.~+/=-]{6,}")
_VALUE = r"""(?x: \\(["']).*?\\\2                                 # a text within a text that was quoted itself
    | [bru]{0,2} "(?:\\.|[^"\\\n])* "? | [bru]{0,2} '(?:\\.|[^'\\\n])* '?
    | \{[^{}]*\}? | \[[^\[\]]*\]? | \([^()]*\)?
    | (?:bearer|basic|token|negotiate|apikey) [ ]+ [^\s,;"']+ | digest [ ] [^\n]*
    | [\w.-]+ = [^\s;,"'=]* (?: ;[ ] [\w.-]+ = [^\s;,"'=]* )+           # cookies of a header
    | [^\s,;&"'<>()\[\]{}]+ )"""


def redact_value(value: Any, patterns: Iterable[str] | None = None) -> Any:
    """Return a JSON value in which `HIDDEN` replaces the value of each key that contains one of the words.

    Args:
        patterns: the words; upper and lower case are equal. None (the default) for the words of ``FAIRQUE["REDACT"]``.
    """
    words = _load_configured_words() if patterns is None else patterns
    return _redact_nested(value, tuple(word.casefold() for word in words), REDACTION_MAX_DEPTH)


def _load_configured_words() -> Iterable[str]:
    """Return the words of ``FAIRQUE["REDACT"]``. If the configuration has mistakes, return the default words, because
    pages must be able to report the mistakes.
    """
    try:
        return get_config().redact
    except ConfigurationError:
        from django_fairque.conf.sections import TopLevelOptions

        return TopLevelOptions().redact


def _redact_nested(value: Any, words: tuple[str, ...], levels: int) -> Any:
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if not levels:
        return HIDDEN
    if isinstance(value, Mapping):
        secret = {key for key in value if any(word in str(key).casefold() for word in words)}
        return {
            key: HIDDEN if key in secret else _redact_nested(nested, words, levels - 1) for key, nested in value.items()
        }
    return [_redact_nested(nested, words, levels - 1) for nested in value]


def redacted_text(text: str, patterns: Iterable[str] | None = None) -> str:
    """Return a sentence, an error or a traceback in which `HIDDEN` replaces secrets: the value after one of the words
    (``password=…``, ``"api_key": "…"``, ``Authorization: Bearer …``), the login in a URL, and a bearer token.

    Args:
        patterns: the words, as for `redact_value`. With an empty list, no secrets are hidden.
    """
    words = tuple(_load_configured_words() if patterns is None else patterns)
    if not words:
        return text
    text = _build_pattern(words).sub(rf"\1{HIDDEN}", text)
    return _BEARER.sub(rf"\1{HIDDEN}", _LOGIN.sub(HIDDEN, text))


def redacted_line(error: str) -> str:
    """Return the first line of an error, with at most 200 characters. Secrets are hidden before the text is cut,
    because a cut secret is not recognized.
    """
    return redacted_text(error).strip().partition("\n")[0][:200]


@lru_cache(maxsize=8)
def _build_pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    """Build the pattern that matches a name and its value. If a colon follows the name, the name must end with the
    word: ``KeyError: 'size'`` is no secret.
    """
    any_word = "|".join(map(re.escape, words))
    name = r"""(?:[\w.-]{0,40}\\?["'][ \t]{0,3}[:=]|[\w.-]{0,40}[ \t]{0,3}=(?!=)|s?[ \t]{0,3}:(?!:))>?[ \t]{0,3}"""
    return re.compile(f"((?:{any_word}){name}){_VALUE}", re.IGNORECASE)


def as_line(task: Task) -> str:
    """Return a task's payload as one line. The line is the payload as it was sent, unless a value in it is hidden or it
    is no JSON.
    """
    shown = redact_value(task.payload)
    if isinstance(shown, Undecodable):
        return as_text(shown)
    if shown == task.payload:
        return task.payload_bytes.decode("utf-8", "backslashreplace")
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))


def as_text(value: Any) -> str:
    """Return a redacted value as indented JSON. At most `TEXT_MAX_CHARACTERS` are shown, followed by a note that there
    are more.

    If a payload is not JSON, only its length and the error are returned, because there are no keys by which secrets
    could be recognized.
    """
    if isinstance(value, Undecodable):
        return _("%(bytes)s bytes that are not shown: %(error)s") % {
            "bytes": number(len(value.raw)),
            "error": value.error,
        }
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    if len(text) <= TEXT_MAX_CHARACTERS:
        return text
    note = _("… and %(count)s characters more") % {"count": number(len(text) - TEXT_MAX_CHARACTERS)}
    return f"{text[:TEXT_MAX_CHARACTERS]}\n{note}"
