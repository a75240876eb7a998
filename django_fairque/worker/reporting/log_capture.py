"""Captures the log lines of a task that is declared with ``capture_logs``. The task's page in the admin shows these
lines.

A handler of the root logger looks up the task that runs in the calling thread or coroutine. The handler is installed when the
first such task of the process begins: a process without such tasks has no handler. Once installed, the handler stays, because
`logging` may skip another handler while one is removed.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from django_fairque.engine.inspection.task_logs import LogLine
from django_fairque.engine.model.errors import FairQueueError, StaleLeaseError
from django_fairque.safely import Interruption, is_a, report_lost_line, traceback_text, type_name
from django_fairque.tasks.context import report_senders, running
from django_fairque.worker.common.log import logger, printable

if TYPE_CHECKING:
    from django_fairque.engine.model.lease import Lease

MAX_CAPTURED_LINES = 200
"""Maximum number of captured lines of one attempt. When there are more, the last lines are kept."""
MAX_CAPTURED_BYTES = 16_384
"""Maximum bytes of all captured lines of one attempt, with their levels and the names of their loggers."""
MAX_LOG_LINE_CHARACTERS = 2_000
"""Maximum length of one line in characters, including its traceback. The rest is cut off."""
MAX_LOGGER_NAME_CHARACTERS = 100
FIRST_SEND_SECONDS, SEND_SECONDS = 1.0, 5.0
"""Seconds from the first log line of a running task until its lines are sent, and seconds between later sends. If the
process is killed, the lines that were not sent are lost."""

SendLog = Callable[["Lease", Sequence[LogLine], int], object]
"""Function that records the lines of an attempt. Its last argument is the number of earlier lines that were not
kept."""


class LogCapture:
    """The log lines of one attempt. Thread-safe, because threads that a task starts in its context also add lines."""

    def __init__(self, lease: Lease, level: int, send: SendLog) -> None:
        self._lease, self._level, self._send = lease, level, send
        self._lines: deque[tuple[LogLine, int]] = deque()
        """The kept lines, each with its size in bytes."""
        self._size = self._count = self._sent = 0
        """Three numbers: the bytes of the kept lines, the count of all logged lines, and that count when lines were
        last sent."""
        self._is_closed = False
        # Reentrant, because the thread that holds the lock may log again while an object is freed here.
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self.due = 0.0
        """Time (`time.monotonic()`) at which the thread that sends reports must send the lines."""

    def add(self, record: logging.LogRecord) -> None:
        """Keep a log record, unless the attempt has ended."""
        if record.levelno < self._level or self._is_closed:
            return
        line = _build_line(record)
        size = len(line.level) + len(line.logger) + len(line.text.encode())
        with self._lock:
            self._lines.append((line, size))
            self._size += size
            self._count += 1
            while len(self._lines) > MAX_CAPTURED_LINES or self._size > MAX_CAPTURED_BYTES:
                self._size -= self._lines.popleft()[1]
            is_first, self.due = not self.due, self.due or monotonic() + FIRST_SEND_SECONDS
        if is_first:
            report_senders.get().add(self)

    def close(self) -> None:
        """End the capture when the attempt ends: keep no further lines, and send the lines that were not sent yet.
        Blocks.
        """
        self._is_closed = True
        self.flush()

    def flush(self) -> None:
        """Send the lines, if there are lines that were not sent yet. Blocks."""
        with self._sending:
            with self._lock:
                lines, count = [line for line, _ in self._lines], self._count
            if count == self._sent:
                return
            self._sent = count
            try:
                self._send(self._lease, lines, count - len(lines))
            except StaleLeaseError:
                self._is_closed = True
            except Exception as error:  # noqa: BLE001 - the task goes on without its log
                logger.warning(
                    "the log of task %s could not be recorded: %s",
                    *(printable(self._lease.task_id), error),
                    exc_info=not isinstance(error, FairQueueError),
                )
        if not self._is_closed:
            self.due = monotonic() + SEND_SECONDS
            report_senders.get().add(self)


def _build_line(record: logging.LogRecord) -> LogLine:
    """Convert a log record to text, even if its arguments or its exception can't be formatted."""
    text = _format_safely(record.getMessage)[:MAX_LOG_LINE_CHARACTERS]
    if (exc_info := record.exc_info) and exc_info[0] is not None:
        trace = record.exc_text or ("" if exc_info[1] is None else traceback_text(exc_info[1]).rstrip("\n"))
        # Cut the start of a long traceback, because its end names the error.
        text = f"{text}\n{trace[-MAX_LOG_LINE_CHARACTERS:]}"[-MAX_LOG_LINE_CHARACTERS:]
    level, name = (
        _format_safely(write)[:MAX_LOGGER_NAME_CHARACTERS] for write in (lambda: record.levelname, lambda: record.name)
    )
    return LogLine(float(record.created), *map(_unicode, (level, name, text)))


def _format_safely(write: Callable[[], object]) -> str:
    """Return a text that calls methods of the task's own objects, such as ``__str__``. Errors in these methods are
    caught, as in `logging`. An interruption at the task's time limit is not caught.
    """
    try:
        return str.__str__(str(write()))
    except BaseException as error:
        if is_a(error, Interruption):
            raise
        return f"<the message can't be formatted: {type_name(error)}>"


def _unicode(text: str) -> str:
    """Escape lone surrogate characters, because these can't be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


class CaptureHandler(logging.Handler):
    """Passes log records to the capture of the task that runs in the calling thread or coroutine, if the task has
    one.
    """

    def handle(self, record: logging.LogRecord) -> bool:
        """Keep the record for the running task. Does not take the handler's lock, which would make all tasks wait while
        one message is formatted.
        """
        capture = running.get().log_capture
        if capture is not None:
            try:
                capture.add(record)
            except BaseException as error:
                if is_a(error, Interruption):
                    raise
                report_lost_line(__name__, "a line of a task was not kept for its page", (), error)
        if len(logging.root.handlers) == 1 and not _has_other_handlers(record.name):
            # If no other handler is installed, `logging` would use its last resort; without this call the message would
            # be lost.
            last = logging.lastResort
            if last is not None and record.levelno >= last.level:
                last.handle(record)
        return True


def _has_other_handlers(name: str) -> bool:
    found: logging.Logger | None = logging.getLogger(name)
    while found is not None and found is not logging.root:
        if found.handlers:
            return True
        found = found.parent
    return False


handler = CaptureHandler()


def start_capture(lease: Lease, level: int, send: SendLog) -> LogCapture:
    """Return a capture for the log lines of an attempt that have ``level`` or a higher level. Install the handler if it
    is missing.
    """
    if handler not in logging.root.handlers:  # installed again if the project has replaced its handlers
        logging.root.addHandler(handler)
    return LogCapture(lease, level, send)
