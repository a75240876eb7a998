"""A management command as Markdown, from its own parser: what it does, its options and those of its actions, with their help."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from django.core.management import load_command_class
from django.core.management.base import DjangoHelpFormatter

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser
    from collections.abc import Iterator

APP = "django_fairque"
EVERYWHERE = DjangoHelpFormatter.show_last | {"--help"}
"""The options that Django gives every command."""


def markdown(name: str) -> str:
    command = load_command_class(APP, name)
    parser = command.create_parser("manage.py", name)
    parts = [paragraph(command.help), options(parser)]
    for action, text, subparser in actions(parser):
        parts += [f"**`{name} {action}`**: {text}.", options(subparser)]
    return "\n\n".join(part for part in parts if part)


def paragraph(text: str) -> str:
    """Help is plain text: what Markdown would read as something else is escaped, and options are code."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_{}[]<>|#" else letter for letter in text)
    return re.sub(r"(?<![\w-])(--[a-z-]+)", r"`\1`", escaped)


def options(parser: ArgumentParser) -> str:
    rows = [f"| {spelled(each)} | {explained(parser, each)} |" for each in arguments(parser)]
    return "\n".join(["| option | |", "|---|---|", *rows]) if rows else ""


def arguments(parser: ArgumentParser) -> list[Action]:
    """The command's own options and arguments; an action's without those that the command has as well (they have no default)."""
    return [
        each
        for each in parser._actions
        if not EVERYWHERE & set(each.option_strings)
        and not isinstance(each, argparse._SubParsersAction)
        and each.default is not argparse.SUPPRESS
    ]


def actions(parser: ArgumentParser) -> Iterator[tuple[str, str, ArgumentParser]]:
    """Each action of a command that has several: its name, its help and its parser."""
    for each in parser._actions:
        if isinstance(each, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in each._choices_actions}
            for name, subparser in each.choices.items():
                yield name, paragraph(helps.get(name, "")), subparser


def spelled(action: Action) -> str:
    """As it is typed: `--limit N`, `--json`, `ENTRY`."""
    if not action.option_strings:
        return f"`{action.metavar or action.dest.upper()}`"
    value = "" if action.nargs == 0 else f" {_value(action)}"
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _value(action: Action) -> str:
    if action.choices:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return str(action.metavar or action.dest.upper()).replace("|", chr(92) + "|")


def explained(parser: ArgumentParser, action: Action) -> str:
    """The help, with the default put in where it speaks of it, as argparse does."""
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return paragraph(text) + (" (required)" if action.required and action.option_strings else "")
