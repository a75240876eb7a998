"""Captures the log lines of a task that is declared with ``capture_logs``, for its page in the admin.

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
"""Maximum number of lines of one attempt. The last lines are kept."""
MAX_CAPTURED_BYTES = 16_384
"""Maximum size of all lines of one attempt, with their levels and the names of their loggers."""
MAX_LOG_LINE_CHARACTERS = 2_000
"""Maximum length of one line, with its traceback. The rest is cut off."""
MAX_LOGGER_NAME_CHARACTERS = 100
FIRST_SEND_SECONDS, SEND_SECONDS = 1.0, 5.0
"""Seconds from the first line until lines are sent while the task runs, and seconds between later sends. A process that is killed
loses the lines of this time."""

SendLog = Callable[["Lease", Sequence[LogLine], int], object]
"""Records the lines of an attempt. The number counts the lines before them that were not kept."""


class LogCapture:
    """The lines of one attempt. Thread-safe: threads that a task starts in its context log here too."""

    def __init__(self, lease: Lease, level: int, send: SendLog) -> None:
        self._lease, self._level, self._send = lease, level, send
        self._lines: deque[tuple[LogLine, int]] = deque()
        """Lines, each with its size."""
        self._size = self._count = self._sent = 0
        """Bytes of the lines, number of logged lines, and that number when lines were last sent."""
        self._is_closed = False
        # Reentrant, because one thread may take it twice: an object that is freed here may log.
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self.due = 0.0
        """Time when the lines are to be sent (`time.monotonic()`), for the thread that sends reports."""

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
        """End the capture with the attempt: keep no more lines, and send the lines that were not sent. Blocks."""
        self._is_closed = True
        self.flush()

    def flush(self) -> None:
        """Send the lines if some were not sent. Blocks."""
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
    """Convert the record to text, even if its arguments and its exception can't be formatted."""
    text = _format_safely(record.getMessage)[:MAX_LOG_LINE_CHARACTERS]
    if (exc_info := record.exc_info) and exc_info[0] is not None:
        trace = record.exc_text or ("" if exc_info[1] is None else traceback_text(exc_info[1]).rstrip("\n"))
        # The end of a traceback names the error.
        text = f"{text}\n{trace[-MAX_LOG_LINE_CHARACTERS:]}"[-MAX_LOG_LINE_CHARACTERS:]
    level, name = (
        _format_safely(write)[:MAX_LOGGER_NAME_CHARACTERS] for write in (lambda: record.levelname, lambda: record.name)
    )
    return LogLine(float(record.created), *map(_unicode, (level, name, text)))


def _format_safely(write: Callable[[], object]) -> str:
    """Return a text that the task's own objects write. Their errors are caught, as `logging` does; a time limit of the task must
    pass."""
    try:
        return str.__str__(str(write()))
    except BaseException as error:
        if is_a(error, Interruption):
            raise
        return f"<the message can't be formatted: {type_name(error)}>"


def _unicode(text: str) -> str:
    """Escape halves of surrogate pairs, because they can't be encoded."""
    return text.encode("utf-8", "backslashreplace").decode()


class CaptureHandler(logging.Handler):
    """Passes records to the task that runs in the calling thread or coroutine, if that captures them."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Keep the record for the task. Without the handler's lock, which all tasks would share while a message is formatted."""
        capture = running.get().log_capture
        if capture is not None:
            try:
                capture.add(record)
            except BaseException as error:
                if is_a(error, Interruption):
                    raise
                report_lost_line(__name__, "a line of a task was not kept for its page", (), error)
        if len(logging.root.handlers) == 1 and not _has_other_handlers(record.name):
            # Without this handler `logging` would have used its last resort.
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
    """Return a capture for the lines of an attempt, from ``level`` on, and make sure that the handler is installed."""
    if handler not in logging.root.handlers:  # also if the project has set up its logging anew
        logging.root.addHandler(handler)
    return LogCapture(lease, level, send)
