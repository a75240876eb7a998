"""Each page as Markdown next to its HTML, and ``llms.txt``, which lists the pages, for programs that read documentation."""

from __future__ import annotations

import inspect
import posixpath
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import commands, contracts
from .messages import complete_messages
from .metadata import description
from .options import with_accepted_values
from .outside import INSTEAD, ROOT
from .rootpages import with_root_pages
from .toctrees import TOCTREE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

DIRECTIVE = re.compile(
    r"^```\{(?P<name>fairque-command|fairque-contracts|eval-rst)\} ?(?P<argument>\S*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
AUTODOC = re.compile(r"^\.\. auto\w+:: (?P<path>[\w.]+)")
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
CAPTION = re.compile(r"^:caption: (.+)$", re.MULTILINE)
CONTRIBUTING = "contributing/index"


def write_markdown(app: Sphinx, exception: Exception | None) -> None:
    """Write the files when a site was built."""
    if exception is not None or app.builder.name != "html":
        return
    for docname in sorted(app.env.found_docs):
        file = Path(app.outdir, f"{docname}.md")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(markdown(app, docname), encoding="utf-8")
    Path(app.outdir, "llms.txt").write_text("\n".join(_overview(app)) + "\n", encoding="utf-8")


def markdown(app: Sphinx, docname: str) -> str:
    """The text of a page: with what the build adds from the code, and links that lead to other pages of the site."""
    source = [Path(app.env.doc2path(docname)).read_text(encoding="utf-8")]
    with_root_pages(app, docname, source)
    with_accepted_values(app, docname, source)
    complete_messages(app, docname, source)
    text = DIRECTIVE.sub(_expanded, TOCTREE.sub("", source[0]))
    return LINK.sub(lambda link: _inside(link, docname), text)


def _expanded(directive: re.Match[str]) -> str:
    match directive["name"]:
        case "fairque-command":
            return commands.markdown(directive["argument"])
        case "fairque-contracts":
            return contracts.markdown()
        case _:
            return "\n\n".join(_documented(directive["body"]))


def _documented(body: str) -> Iterator[str]:
    """The docstrings of what the directives of autodoc name; lines of prose between them stay."""
    for line in body.splitlines():
        if found := AUTODOC.match(line):
            yield from _docstrings(found["path"])
        elif line and not line.startswith((" ", "..")):
            yield line


def _docstrings(path: str) -> Iterator[str]:
    named = _resolve(path)
    yield f"**`{path}{_signature(named)}`**"
    yield inspect.getdoc(named) or ""
    if inspect.isclass(named):
        own = {name for kind in named.__mro__ if kind.__module__.startswith("django_fairque") for name in vars(kind)}
        for name, member in inspect.getmembers(named):
            text = inspect.getdoc(member) if name in own and not name.startswith("_") else ""
            if text and (callable(member) or isinstance(member, property)):
                yield f"**`{name}{_signature(member)}`**"
                yield text


def _resolve(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def _signature(named: Any) -> str:
    try:
        return str(inspect.signature(named))
    except (TypeError, ValueError):  # a constant, a property, or a class of an extension
        return ""


def _inside(link: re.Match[str], docname: str) -> str:
    """A link to a file outside of docs/ leads to the page that has its text, or is only its text."""
    here = posixpath.dirname(f"docs/{docname}")
    target = posixpath.normpath(posixpath.join(here, link["path"]))
    if target.startswith("docs/") or not (ROOT / target).exists():
        return link[0]
    page = INSTEAD.get(target.removesuffix(".md"))
    return f"[{link['text']}]({posixpath.relpath(f'docs/{page}.md', here)})" if page else link["text"]


def _overview(app: Sphinx) -> Iterator[str]:
    """The pages by their groups, each with its title and the beginning of its text."""
    root = app.config.root_doc
    yield f"# {app.config.project}"
    yield f"\n> {description(app.env.get_doctree(root))}"
    for toctree in TOCTREE.finditer(Path(app.env.doc2path(root)).read_text(encoding="utf-8")):
        names = [line for line in toctree["body"].splitlines() if line in app.env.found_docs]
        caption = CAPTION.search(toctree["body"])
        if names and names != [CONTRIBUTING]:
            yield f"\n## {caption[1] if caption else 'Pages'}\n"
            yield from (_line(app, name) for name in names)
    if contributors := app.env.toctree_includes.get(CONTRIBUTING):
        yield "\n## Optional\n"
        yield from (_line(app, name) for name in contributors)


def _line(app: Sphinx, docname: str) -> str:
    text = description(app.env.get_doctree(docname))
    address = f"{app.config.html_baseurl.rstrip('/')}/{docname}.md".lstrip("/")
    return f"- [{app.env.titles[docname].astext()}]({address})" + (f": {text}" if text else "")
