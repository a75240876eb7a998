"""Names that a hostile or unlucky person may give a user, a task, or a key of a payload.

None of them may become markup, a script or a link in the admin. The engine accepts most of them as names, so only the pages
protect an operator's browser. The names are in hostile_names.json, by kind.
"""

from __future__ import annotations

import json
from pathlib import Path

KINDS: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
CORPUS = [name for names in KINDS.values() for name in names]
