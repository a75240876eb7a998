"""Base classes of the commands about queues: they choose the queue, and show each error in one clear line."""

from __future__ import annotations

import os
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from getpass import getuser
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.utils import translation
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from django_fairque.audit import acting_once_as
from django_fairque.conf import get_config, get_queue
from django_fairque.conf.redis import close_client
from django_fairque.engine.model.errors import FairQueueError, short
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.monitoring.formatting import Heading, plain, read_age
from django_fairque.monitoring.probe import client_with_timeout, queue_without_retries
from django_fairque.monitoring.redaction import redacted_text
from django_fairque.monitoring.report import missing_words

if TYPE_CHECKING:
    from django_fairque.engine.inspection.pages import ResultPage


def positive(text: str) -> int:
    """Parse a positive number of things to show or change. Used as ``type`` of an argument."""
    if not (text.isdecimal() and len(text) < 10 and int(text)):
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {short(text)}")
    return int(text)


T = TypeVar("T")
Parser = CommandParser
"""The class of the parser of a command's arguments."""


def pages(read: Callable[[str | None], ResultPage[T]]) -> Iterator[ResultPage[T]]:
    """Yield each page of a list. ``read`` is called with a cursor and returns a page."""
    page = read(None)
    yield page
    while page.cursor is not None:
        page = read(page.cursor)
        yield page


def when(moment: float) -> str:
    """Format a Unix time in UTC."""
    return f"{datetime.fromtimestamp(moment, timezone.utc):%Y-%m-%d %H:%M:%SZ}"


def add_pause_options(parser: ArgumentParser) -> None:
    """Add the options ``--note``, ``--for`` and ``--until``, which `pause_options` reads."""
    parser.add_argument("--note", default="", metavar="TEXT", help="why, at most 200 characters: shown with the pause")
    add_end_options(parser, "the pause ends")


def add_end_options(parser: ArgumentParser, end: str) -> None:
    """Add the options ``--for`` and ``--until``, which `end_option` reads. ``end`` names the event at the end, with its
    verb.
    """
    ends = parser.add_mutually_exclusive_group()
    length = f"{end} by itself after this time, such as 90s, 30m, 2h or 7d"
    ends.add_argument("--for", dest="end_after", metavar="TIME", help=length)
    moment = f"{end} by itself at this time, such as 2030-12-31T18:00 (in TIME_ZONE) or 2030-12-31T18:00Z"
    ends.add_argument("--until", dest="end_at", metavar="DATETIME", help=moment)


def pause_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for ``pause`` from the command's options. Raises the errors of `end_option`."""
    return {"note": options["note"], "until": end_option(options)}


def end_option(options: Mapping[str, Any]) -> datetime | timedelta | None:
    """Return the end that ``--for`` or ``--until`` sets; None without these options.

    Raises:
        ValueError: a value is not a time; the message describes a correct value.
    """
    if options["end_after"] is not None:
        return timedelta(seconds=read_age(options["end_after"]))
    if options["end_at"] is None:
        return None
    end = parse_datetime(options["end_at"])
    if end is None:
        raise ValueError(f"--until takes a date and time such as 2030-12-31T18:00, got {short(options['end_at'])}")
    return make_aware(end) if is_naive(end) else end


NO_LIMIT = "none"


def parse_limit(text: str, kind: Callable[[str], Any] = int, expected: str = "a limit is a whole number") -> Any:
    """Parse a limit: a number of this kind, or `NO_LIMIT`. Raises `ValueError` for other texts."""
    if text == NO_LIMIT:
        return None
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{expected}, or 'none' for no limit, got {short(text)}") from None


def open_what_is_closed() -> None:
    """Open standard output or error if the process was started with it closed (``>&-``). Python then has None for the
    stream.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(nothing, True)  # noqa: FBT003 - it has the number of what is closed, in other processes too
            setattr(sys, name, os.fdopen(nothing, "w", closefd=False))


ACTOR_HELP = "who acts, for the audit (default: the user of the operating system)"
COMMAND_TIMEOUT_SECONDS = 2.5
"""Maximum seconds to wait for one answer of the server. Longer than the 1.5 s that a server may need to confirm a
write."""


@contextmanager
def queues_with_timeout() -> Iterator[Callable[[str], FairQueue]]:
    """Yield a function that opens a declared queue. Calls of this queue wait `COMMAND_TIMEOUT_SECONDS` for an answer
    and are not repeated.
    """
    config = get_config()
    client = client_with_timeout(config, COMMAND_TIMEOUT_SECONDS)
    try:
        yield lambda name: queue_without_retries(config, client, name)
    finally:
        close_client(client)


class PrintingCommand(BaseCommand):
    """A command that prints lines. An error is reported in one line, and the command ends quietly when the program that
    reads its output closes the pipe.
    """

    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own declaration

    def __init__(self, *args: Any, **options: Any) -> None:
        open_what_is_closed()
        if os.environ.get("NO_COLOR") and not options.get(
            "force_color"
        ):  # Django ignores the variable NO_COLOR (https://no-color.org)
            options["no_color"] = True
        super().__init__(*args, **options)

    def write_lines(self, *lines: str, style: Callable[[str], str] | None = None) -> None:
        """Print each line as one line, even if ids, names or errors contain line breaks."""
        self.stdout.write("\n".join((style or self.choose_style(line))(plain(line)) for line in lines))

    def choose_style(self, line: str) -> Callable[[str], str]:
        """Return the function that colors a line, if it is the heading of a table or a warning. A warning begins with
        ``!``.
        """
        if isinstance(line, Heading):
            return cast("Callable[[str], str]", self.style.MIGRATE_LABEL)
        return cast("Callable[[str], str]", self.style.WARNING) if line.startswith("! ") else str

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except FairQueueError as error:
            raise CommandError(str(error)) from error

    def run_from_argv(self, argv: list[str]) -> None:
        try:
            super().run_from_argv(argv)
            self.stdout.flush()
        except BrokenPipeError:
            sys.exit(1)
        finally:
            _flush_or_drop(self.stdout)
            _flush_or_drop(self.stderr)


def _flush_or_drop(output: OutputWrapper) -> None:
    """Flush a stream, and drop its content if that fails. Otherwise Python would flush the stream again when it exits,
    and report an error.
    """
    try:
        output.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


class QueueCommand(PrintingCommand):
    """A command about one queue. An error is reported in one line and ends the command.

    Subclasses define `run` or, for each action, a method that yields the lines to print: ``_cancel_run`` for ``cancel-run``.
    """

    queue: FairQueue
    options: dict[str, Any]
    """The options and arguments of the command."""
    steers = False
    """Whether the command changes queues. If so, each run is recorded in the audit log, and ``--actor`` names the
    person."""

    tells_missing = True
    """Whether the command names shards that could not be reached, at the end and on standard error."""

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", default="default", metavar="NAME", help="the queue (default: %(default)s)")
        if self.steers:
            parser.add_argument("--actor", metavar="NAME", help=ACTOR_HELP)

    def add_actions(self, parser: CommandParser) -> Callable[..., ArgumentParser]:
        """Return a function that adds an action to the command, with the action's name and help. Further arguments of
        that function are the arguments of the action, by name, with their help.

        Each action accepts ``--queue`` as well, because people write the action first.
        """
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

        def add(action_name: str, text: str, **arguments: str) -> ArgumentParser:
            action = actions.add_parser(action_name, help=text)
            # No default here, because it would replace the value that was given before the action.
            action.add_argument(
                "--queue", default=SUPPRESS, metavar="NAME", help="the queue, here or before the action"
            )
            if self.steers:
                action.add_argument("--actor", default=SUPPRESS, metavar="NAME", help=ACTOR_HELP)
            for argument, about in arguments.items():
                action.add_argument(argument, help=about)
            return action

        return add

    @staticmethod
    def add_unredacted(parser: ArgumentParser) -> None:
        """Add the option ``--unredacted`` to a command that shows payloads, results or errors."""
        parser.add_argument(
            "--unredacted", action="store_true", help="as they are: hide no passwords, tokens and keys (REDACT)"
        )

    def redact(self, text: str) -> str:
        """Return an error in the form in which it is shown: with secrets hidden, unless ``--unredacted`` was given."""
        return text if self.options["unredacted"] else redacted_text(text)

    def handle(self, *args: Any, **options: Any) -> None:
        self.options = options
        try:
            # The output of commands is also read by logs and scripts, so it is English in every locale.
            with translation.override(None), queues_with_timeout() as open_queue:
                configured = get_queue(options["queue"])  # in a test run this may be an interceptor's queue
                self.queue = open_queue(options["queue"]) if isinstance(configured, FairQueue) else configured
                with acting_once_as(self.actor, "command") if self.steers else nullcontext():
                    self.run()
                if self.queue.missing_shards and self.tells_missing:
                    self.stderr.write(f"! {missing_words(self.queue.missing_shards)}")
        except ValueError as error:
            raise CommandError(str(error)) from error

    @property
    def actor(self) -> str:
        """The name of the person who runs the command: ``--actor``, or the user of the operating system."""
        if self.options.get("actor"):
            return str(self.options["actor"])
        try:
            return getuser()
        except (KeyError, OSError):  # the system has no name for the user id, as in some containers
            return f"user {os.getuid()}"

    def run(self) -> None:
        for line in getattr(self, f"_{self.options['action']}".replace("-", "_"))():
            self.write_lines(line)
