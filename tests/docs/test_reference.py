"""The reference documents all settings, commands with their options, checks, signals, exceptions and public names."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import get_commands, load_command_class
from fairque_docs import commands, contracts, options

import django_fairque
from django_fairque import signals, testing
from django_fairque.engine.scripting import scripts
from tests.docs.blocks import DOCS

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator
    from pathlib import Path

REFERENCE = DOCS / "reference"
COMMANDS = sorted(name for name, app in get_commands().items() if app == "django_fairque")
DIRECTIVE = re.compile(r"^```\{(fairque-[a-z]+)\} ?(.*)$", re.MULTILINE)


def directives(page: str, kind: str) -> list[str]:
    """The arguments of the directives of that kind on a page of the reference, in their order."""
    return [argument for name, argument in DIRECTIVE.findall((REFERENCE / page).read_text()) if name == kind]


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)


class TestSettings:
    PAGE = (REFERENCE / "settings.md").read_text()

    def test_only_sections_of_the_configuration_have_a_table(self) -> None:
        assert {table["section"] for table in options.TABLE.finditer(self.PAGE)} == set(options.sections())

    @pytest.mark.parametrize("section", options.sections())
    def test_every_option_has_a_row_with_its_default_and_its_meaning(self, section: str) -> None:
        fields, rows = options.fields(section), options.rows(self.PAGE, section)
        assert sorted(rows) == sorted([*fields, *([options.FILE_OPTION] if section == options.TOP_LEVEL else [])])
        assert [name for name, (_, meaning) in rows.items() if not meaning] == []
        silent = [name for name, field in fields.items() if options.accepted(field) == "a mapping"]
        assert set(silent) <= SECTIONS, "these need Field(description=...): what is accepted, with its unit"

    def test_the_settings_tables_have_accepted_values(self) -> None:
        rows = options.completed(self.PAGE).splitlines()
        (row,) = (row for row in rows if row.startswith("| `RESULT_TTL` |"))
        cells = options.cells(row)
        assert cells[:2] == ["`RESULT_TTL`", "`86400`"]
        assert cells[2].startswith("a number of seconds from 60 and at most")
        assert "| option | default | accepted | meaning |" in rows

    def test_a_row_for_an_unknown_option_is_an_error(self) -> None:
        page = "<!-- options: QUEUE -->\n| option | default | meaning |\n|---|---|---|\n| `NEW` | 1 | new |\n"
        with pytest.raises(LookupError, match=r"docs/reference/settings.md names NEW, which is no option of QUEUE"):
            options.completed(page)


SECTIONS = {"REDIS", "WORKER", "WORKERS", "QUEUE", "QUEUES", "PLANS", "SCHEDULES", "MONITOR"}


class TestCommands:
    def test_every_command_has_its_heading_and_its_options(self) -> None:
        assert directives("commands.md", "fairque-command") == COMMANDS
        assert headings(REFERENCE / "commands.md")[1:] == [f"`{name}`" for name in COMMANDS]

    def test_every_command_is_in_the_table(self) -> None:
        rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \|", (REFERENCE / "commands.md").read_text(), re.MULTILINE)
        assert rows == [(name, name) for name in COMMANDS]

    def test_every_command_option_has_help_and_is_on_the_page(self) -> None:
        for name in COMMANDS:
            loaded = load_command_class("django_fairque", name)
            assert len(loaded.help) > 20, name
            parser = loaded.create_parser("manage.py", name)
            assert [str(action) for action in silent(parser)] == [], name
            page = commands.markdown(name)
            for command in [parser, *(subparser for _, _, subparser in commands.actions(parser))]:
                options = [option for action in commands.arguments(command) for option in action.option_strings]
                assert [option for option in options if not re.search(rf"`{option}[ `]", page)] == [], name

    def test_defaults_and_choices_are_filled_in(self) -> None:
        page = commands.markdown("fairque_dlq")
        assert "| `--limit N` | show at most N (default: 50) |" in page
        assert "`--type {failed,expired,poisoned}`" in page
        assert "**`fairque_dlq show`**: one entry with its payload and history." in page
        assert "with `--all`: don't ask" in page
        assert "| `--older-than AGE` | such as 12h or 7d (required) |" in page


def silent(parser: ArgumentParser) -> Iterator[str]:
    """Return the arguments and actions without a help text, in a parser and in the parsers of its actions."""
    for action in commands.arguments(parser):
        if not action.help or len(action.help) < 5:
            yield "/".join(action.option_strings) or action.dest
    for name, text, subparser in commands.actions(parser):
        if len(text) < 5:
            yield name
        yield from silent(subparser)


class TestSignals:
    def arguments(self) -> dict[str, str]:
        section = (REFERENCE / "metrics-and-signals.md").read_text().partition("\n## Signals\n")[2]
        rows = re.findall(r"^\| (`.*?) \| .*? \| (.*?) \|$", section, re.MULTILINE)
        return {name: arguments for names, arguments in rows for name in re.findall(r"`(\w+)`", names)}

    def test_every_signal_has_a_row_with_its_arguments(self) -> None:
        assert sorted(self.arguments()) == sorted(signals.__all__)
        assert all("`" in arguments for arguments in self.arguments().values())

    def test_the_docstring_of_signals_names_the_arguments_that_are_sent(self) -> None:
        rows = re.findall(r"^``(\w+)``  +.*?  +(\S.*)$", signals.__doc__ or "", re.MULTILINE)
        assert sorted(name for name, _ in rows) == sorted(signals.__all__)
        for name, arguments in rows:
            wanted = set(re.findall(r"``(\w+)``", arguments)) - {"task_id"}
            assert wanted <= set(re.findall(r"`(\w+)`", self.arguments()[name])) | {"task"}, name


CLASSES = [
    "django_fairque.FairQueue",
    "django_fairque.Lease",
    "django_fairque.Pipeline",
    "django_fairque.PipelineResult",
    "django_fairque.PushResult",
    "django_fairque.TaskResult",
    "django_fairque.UserQueue",
    "django_fairque.engine.dead_letters.dead_letters.DeadLetterQueue",
    "django_fairque.engine.users.organizations.OrganizationQueue",
    "django_fairque.engine.schedules.schedules.Schedules",
    "django_fairque.engine.dependencies.dependencies.XCom",
    "django_fairque.engine.inspection.task_logs.TaskLogs",
    "django_fairque.tasks.context.TaskContext",
    "django_fairque.tasks.definition.TaskDefinition",
    "django_fairque.testing.Capture",
]
"""The classes that users call most; those for coroutines have the same methods."""


class TestPython:
    """Everything public is in the Python reference, with a docstring."""

    def documented(self) -> set[str]:
        text = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
        return set(re.findall(r"^\.\. auto\w+:: ([\w.]+)", text, re.MULTILINE)) | set(
            re.findall(r"`(django_fairque\.__version__)`", text)
        )

    @pytest.mark.parametrize("module", [django_fairque, testing], ids=lambda module: module.__name__)
    def test_every_public_name_is_documented(self, module: Any) -> None:
        names = {f"{module.__name__}.{name}" for name in module.__all__}
        assert names - self.documented() == set()

    @pytest.mark.parametrize("module", [django_fairque, testing], ids=lambda module: module.__name__)
    def test_every_public_name_has_a_docstring_that_is_not_inherited(self, module: Any) -> None:
        public = {name: getattr(module, name) for name in module.__all__ if not name.startswith("__")}
        assert [name for name, member in public.items() if not member.__dict__.get("__doc__", member.__doc__)] == []

    def test_every_documented_name_exists(self) -> None:
        for path in self.documented():
            module, _, name = path.rpartition(".")
            assert hasattr(import_module(module), name), path

    @pytest.mark.parametrize("path", CLASSES)
    def test_every_public_method_has_a_docstring(self, path: str) -> None:
        module, _, name = path.rpartition(".")
        kind = getattr(import_module(module), name)
        members = {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}
        methods = {name: value for name, value in members.items() if callable(value) or isinstance(value, property)}
        assert methods
        assert [name for name, value in methods.items() if not inspect.getdoc(value)] == []


class TestExceptions:
    def test_every_exception_has_a_row_with_the_remedy(self) -> None:
        section = (REFERENCE / "exceptions.md").read_text()
        rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE))
        public = {name: getattr(django_fairque, name) for name in dir(django_fairque)}
        raised = {
            n
            for n, kind in public.items()
            if isinstance(kind, type) and issubclass(kind, django_fairque.FairQueueError)
        }
        assert set(rows) == raised
        assert all(len(to_do) > 10 for to_do in rows.values())


class TestScripts:
    def test_every_script_contract_is_read_completely(self) -> None:
        for description, parts in map(contracts.read, scripts.names()):
            assert description
            assert description[0].endswith((".", ":")), description
            assert list(parts) == list(contracts.PARTS), description

    def test_the_page_of_contracts_has_all_scripts(self) -> None:
        page = contracts.markdown()
        assert re.findall(r"^\*\*`(\w+)`\*\*$", page, re.MULTILINE) == scripts.names()
        assert "COST   12 commands for one task, 2 for each user in bulk, 5 a dependency" in page


class TestGlossary:
    WORDS = re.findall(
        r'^\| <a id="([\w-]+)"></a>(.*?) \| (.*) \|$', (REFERENCE / "glossary.md").read_text(), re.MULTILINE
    )

    def test_the_glossary_is_sorted_and_has_each_word_once(self) -> None:
        words = [word for _, word, _ in self.WORDS]
        assert words == sorted(set(words))
        assert len(words) > 25

    def test_an_anchor_in_the_glossary_is_its_word(self) -> None:
        for anchor, word, _ in self.WORDS:
            assert word.replace(" ", "-").startswith(anchor), word

    def test_the_glossary_names_every_state(self) -> None:
        states = re.findall(r"^\| `(\w+)` \|", (REFERENCE / "glossary.md").read_text(), re.MULTILINE)
        assert sorted(states) == sorted(state.value for state in django_fairque.TaskState)

    def test_the_words_of_other_queues_belong_to_words_of_the_glossary(self) -> None:
        text = (REFERENCE / "glossary.md").read_text()
        (table,) = re.findall(r"^\| here \| Celery \| RQ \| SQS \| Temporal \|\n.*\n((?:\|.*\n)+)", text, re.MULTILINE)
        here = [row.strip("|").split("|") for row in table.splitlines()]
        anchors = {anchor for anchor, _, _ in self.WORDS}
        states = {state.value for state in django_fairque.TaskState}
        for word, *others in here:
            assert set(re.findall(r"\(#([\w-]+)\)", word)) <= anchors
            assert re.search(r"\(#", word) or set(re.findall(r"`(\w+)` \(state\)", word)) <= states
            assert len(others) == 4
            assert any(other.strip() for other in others), f"no queue has a word for {word}"
        assert len(here) > 20
