"""Print a command that README.md gives: the line of the code block under `<!-- command: NAME -->`.

The README is the only place where such a command is written, so what it promises is what CI runs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
BLOCK = re.compile(r"^<!-- command: (?P<name>[\w-]+) -->\n```sh\n(?P<command>.+)\n```$", re.MULTILINE)


def readme_commands() -> dict[str, str]:
    return {match["name"]: match["command"] for match in BLOCK.finditer(README.read_text())}


if __name__ == "__main__":
    commands = readme_commands()
    name = sys.argv[1]
    if name not in commands:
        sys.exit(f"README.md has no command {name!r} in a one-line sh block, only {sorted(commands)}")
    sys.stdout.write(commands[name] + "\n")
