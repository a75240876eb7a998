"""The contracts of the Lua commands as Markdown, from the comments that their files begin with."""

from __future__ import annotations

import re
from pathlib import Path

from django_fairque import engine
from django_fairque.engine.scripting import scripts

FOLDER = Path(engine.__file__).parent / "lua" / "commands"
PARTS = ("KEYS", "ARGV", "REPLY", "COST")
PART = re.compile(r"^(KEYS|ARGV|REPLY|COST|include) +(.*)$")


def markdown() -> str:
    return "\n\n".join(f"**`{name}`**\n\n{contract(name)}" for name in scripts.names())


def contract(name: str) -> str:
    """What the command does, then its keys, arguments, reply and cost, word for word."""
    description, parts = read(name)
    prose = "\n\n".join(_escaped(paragraph) for paragraph in description)
    table = "\n".join(f"{part:6} {text}" for part, text in parts.items())
    return f"{prose}\n\n```text\n{table}\n```"


def read(name: str) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of the description, and the parts by name (their lines as they stand)."""
    paragraphs, parts, part = [""], dict[str, str](), ""
    for line in _header(name):
        if found := PART.match(line):
            part, parts[part] = found[1], found[2]
        elif part:
            parts[part] += f"\n{line}"
        elif not line:
            paragraphs.append("")
        else:
            paragraphs[-1] += f" {line}"
    return [paragraph.strip() for paragraph in paragraphs if paragraph], {each: parts[each] for each in PARTS}


def _header(name: str) -> list[str]:
    lines = (FOLDER / f"{name}.lua").read_text().splitlines()[1:]
    end = next(at for at, line in enumerate(lines) if not line.startswith("--"))
    return [line[3:] for line in lines[:end]]


def _escaped(text: str) -> str:
    return re.sub(r"([*_<>\[\]|])", r"\\\1", text)
