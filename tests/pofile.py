"""Reading a catalogue of translations as it is committed, without GNU gettext."""

from __future__ import annotations

import ast
import gettext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Entry:
    """One message; ``texts`` are its translations, of a message with a plural one for each form."""

    is_fuzzy: bool = False
    context: str | None = None
    id: str = ""
    plural: str | None = None
    texts: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The key of the message in a compiled catalogue."""
        return self.id if self.context is None else f"{self.context}\x04{self.id}"


def read(path: Path) -> tuple[Entry, list[Entry]]:
    """The header, and the messages that are in use."""
    header, *entries = (_entry(block) for block in path.read_text().split("\n\n") if "msgid" in block)
    return header, [entry for entry in entries if entry.id]


def compiled(path: Path) -> gettext.GNUTranslations:
    with path.open("rb") as file:
        return gettext.GNUTranslations(file)


def _entry(block: str) -> Entry:
    entry = Entry()
    texts: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if line.startswith("#"):
            entry.is_fuzzy |= line.startswith("#,") and "fuzzy" in line
            continue
        keyword, _, text = line.partition('"')
        name = keyword.strip() or name
        texts[name] = texts.get(name, "") + ast.literal_eval(f'"{text}')
    entry.context, entry.id, entry.plural = texts.get("msgctxt"), texts.get("msgid", ""), texts.get("msgid_plural")
    entry.texts = list(_translations(texts))
    return entry


def _translations(texts: dict[str, str]) -> Iterator[str]:
    for name, text in texts.items():
        if name.startswith("msgstr"):
            yield text
