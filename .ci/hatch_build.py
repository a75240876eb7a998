"""Build hooks: the addresses of a published package, a README whose links work anywhere, and the pages of ``fairque_docs``.

A build for publication names where the project is, in two environment variables:

- ``FAIRQUE_REPOSITORY_URL``: the repository on a code host, such as ``https://git.example/owner/django_fairque``;
  pages and pictures are looked for where GitHub has them.
- ``FAIRQUE_DOCUMENTATION_URL``: the folder of the built site, such as ``https://fairque.example/0.1``.

Without them (in a checkout) the metadata has no addresses, README is as it is in the repository, and hints of checks name the
command ``fairque_docs`` instead of a page.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY_VARIABLE = "FAIRQUE_REPOSITORY_URL"
DOCUMENTATION_VARIABLE = "FAIRQUE_DOCUMENTATION_URL"
MESSAGE_PAGES = ("contributing/log-messages.md", "contributing/messages.md")
"""Pages with the explanations of messages, which the search leaves out."""
LINK = re.compile(r'(?P<before>\]\(|\b(?:src|srcset|href)=")(?P<target>[^)"\s]+)')
"""The target of a link or a picture, in Markdown and in HTML."""
PICTURES = (".gif", ".png", ".svg", ".webp")
ONLY_PUBLISHED = re.compile(r"<!-- published\n(?P<text>.*?)-->\n", re.DOTALL)
ONLY_IN_CHECKOUTS = re.compile(r"<!-- unpublished -->\n.*?<!-- /unpublished -->\n", re.DOTALL)


class Metadata(MetadataHookInterface):
    """Adds ``readme`` and ``urls``. In a source distribution both are there already, and stay as they are."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository, documentation = address(REPOSITORY_VARIABLE), address(DOCUMENTATION_VARIABLE)
        if "readme" not in metadata:
            text = Path(self.root, "README.md").read_text(encoding="utf-8")
            if repository:
                text = published(text, repository, f"v{metadata['version']}")
            metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if "urls" not in metadata and (repository or documentation):
            metadata["urls"] = urls(repository, documentation, f"v{metadata['version']}")


class OfflinePages(BuildHookInterface[Any]):
    """Puts the complete pages and the search's index into a wheel. An editable installation reads them from the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and version != "editable":
            folder = tempfile.TemporaryDirectory()
            atexit.register(folder.cleanup)  # the wheel is written after this call
            docs = Path(self.root, "docs")
            messages, search = (
                runpy.run_path(str(docs / "_ext" / "fairque_docs" / f"{name}.py"))
                for name in ("messages", "search_index")
            )
            files = {
                file.relative_to(docs): messages["completed"](file.read_text(encoding="utf-8"))
                for file in (*search["user_pages"](), *(docs / page for page in MESSAGE_PAGES))
            }
            files[Path("search_index.json")] = json.dumps(search["search_index"](), ensure_ascii=False)
            for name, text in files.items():
                complete = Path(folder.name, name)
                complete.parent.mkdir(parents=True, exist_ok=True)
                complete.write_text(text, encoding="utf-8")
                build_data["force_include"][str(complete)] = f"django_fairque/docs/{name.as_posix()}"


def address(variable: str) -> str:
    """The address that an environment variable has, without a slash at its end; empty if the variable is not set."""
    found = os.environ.get(variable, "").rstrip("/")
    if found and not re.fullmatch(r"https://[^\s\"<>()]+", found):
        raise ValueError(f"{variable} must be an address that begins with https://, got {found!r}")
    return found


def urls(repository: str, documentation: str, tag: str) -> dict[str, str]:
    """The ``[project.urls]`` of a published package."""
    found = {"Documentation": documentation} if documentation else {}
    if repository:
        found |= {
            "Source": repository,
            "Issues": f"{repository}/issues",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
        }
    return found


def published(text: str, repository: str, tag: str) -> str:
    """README as other hosts show it: links lead to the repository, and the parts between the marks ``published`` are there."""
    text = ONLY_PUBLISHED.sub(lambda part: part["text"], ONLY_IN_CHECKOUTS.sub("", text))

    def absolute(link: re.Match[str]) -> str:
        target = link["target"]
        if target.startswith("#") or re.match(r"[a-z]+:", target):
            return link[0]
        return f"{link['before']}{repository}/{'raw' if target.endswith(PICTURES) else 'blob'}/{tag}/{target}"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)  # blocks of code stay as they are
    parts[::2] = [LINK.sub(absolute, part) for part in parts[::2]]
    return "".join(parts)
