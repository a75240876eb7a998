"""The directives by which pages take parts of the reference from the code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sphinx.util.docutils import SphinxDirective

from . import commands, contracts

if TYPE_CHECKING:
    from docutils import nodes


class _Markdown(SphinxDirective):
    """Puts Markdown in its place."""

    def parsed(self, text: str) -> list[nodes.Node]:
        return self.parse_text_to_nodes(text)


class CommandDirective(_Markdown):
    """``{fairque-command} NAME``: a management command with its options."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parsed(commands.markdown(self.arguments[0]))


class ContractsDirective(_Markdown):
    """``{fairque-contracts}``: the contracts of all Lua commands."""

    def run(self) -> list[nodes.Node]:
        return self.parsed(contracts.markdown())
