"""Every error that the queue raises, in one tree.

::

    FairQueueError
    ├── ConfigurationError          a setting is wrong; names the key, what was expected, what came
    │   └── DataFormatError         another version of the package wrote the queue's data
    ├── TaskValidationError         a call that can't be carried out as it is: a task, or another argument
    │   └── TaskSerializationError  a payload or result is not strict JSON, or is too large
    ├── PushRefusedError            the queue refused one or more tasks; the others of the call were accepted
    │   ├── BacklogFullError        the user's backlog limit refused tasks
    │   └── TaskIdConflictError     a chosen id belongs to another user's task
    ├── TaskNotFoundError           no task (or dead letter) of that id
    ├── StaleLeaseError             the lease is no longer the current one; nothing was changed
    ├── DependencyCycleError        a task would wait for itself
    ├── RedisConnectionError        the server can't be reached, or refuses to work now
    │   ├── ServerRefusedError      the server refused the request (it is read-only, full, ...)
    │   │   ├── NotPermittedError   this user's rights do not suffice; names the command
    │   │   └── UnsignedTaskError   the workers run signed tasks only, and this process signs none
    │   ├── ShardsAwayError         some of a queue's shards can't be reached, and the request needs them
    │   ├── UntrustedServerError    the server's certificate can't be trusted
    │   ├── NotReplicatedError      too few replicas confirmed in time: a failover may lose the tasks
    │   └── UnsupportedServerError  the server is too old, or may evict data (a ConfigurationError too)
    └── LuaScriptError              a script failed, and no other error class fits
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence
from functools import cached_property

from django_fairque.safely import Interruption, is_a, type_name

_MODULES = (__name__, "django_fairque.tasks.errors")
"""Modules whose classes are in the Python reference. The command ``fairque_docs`` has a topic for each of these classes."""


class FairQueueError(Exception):
    """The base of all errors that django_fairque raises on purpose.

    Below a traceback, Python 3.11 and newer print the command that explains the error.
    """

    @cached_property
    def __notes__(self) -> list[str]:  # type: ignore[override, unused-ignore]
        """The lines that Python prints below a traceback: the command that explains the error, and the notes of `add_note`."""
        name = next(kind.__name__ for kind in type(self).__mro__ if kind.__module__ in _MODULES)
        return [f"Run manage.py fairque_docs {name} for help"]


class ConfigurationError(FairQueueError):
    """A setting can't be used: the message names the key, what was expected and what came."""


class DataFormatError(ConfigurationError):
    """The queue's data on the server have a format that this version of the package can't use; nothing was changed.

    The message names both formats, their versions, and the command that converts the data.
    """


class TaskValidationError(FairQueueError, ValueError):
    """A task or another argument of a call can't be used: nothing was written. A `ValueError` as well."""


class TaskSerializationError(TaskValidationError):
    """A payload or result is not strict JSON, or is larger than the limit."""


class PushRefusedError(FairQueueError):
    """The queue refused one or more tasks.

    ``message`` is the text. ``refused`` has the ids of the tasks that were not accepted, ``results`` the result of each
    task of the call (the other tasks of a bulk push were accepted); both are empty by default.
    """

    def __init__(self, message: str, *, refused: Sequence[str] = (), results: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.refused = tuple(refused)
        self.results = tuple(results)


class BacklogFullError(PushRefusedError):
    """A user's backlog limit refused one or more tasks."""


class AtLimitError(PushRefusedError):
    """A limit with ``at_limit="skip"`` is full, so one or more tasks were refused."""


class TaskIdConflictError(PushRefusedError, ValueError):
    """The chosen id of one or more tasks belongs to a task of another user, which was not changed. A `ValueError` as
    well.
    """


class QueueNotDrainedError(FairQueueError):
    """The queue can't be moved to another number of shards while it has tasks or running workers; nothing was changed."""


class TaskNotFoundError(FairQueueError, LookupError):
    """There is no task or dead letter of that id (it may have been forgotten after its retention)."""


class StaleLeaseError(FairQueueError):
    """The lease is not the task's current one: it ended, was given back, or the task was canceled.

    The call changed nothing. Another worker has, or had, the task.
    """


class DependencyCycleError(TaskValidationError):
    """A task would, directly or indirectly, wait for itself. ``message`` is the text; ``cycle`` names the tasks, with
    the first task again at the end; empty by default.
    """

    def __init__(self, message: str, cycle: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.cycle = tuple(cycle)


class RedisConnectionError(FairQueueError):
    """The server can't be reached or did not answer in time."""


class ServerRefusedError(RedisConnectionError):
    """The server refused the request: it is read-only, loading, out of memory, or does not permit it."""


class NotPermittedError(ServerRefusedError):
    """The server's access rules forbid the request.

    ``message`` is the text; ``command`` is the command, empty (the default) if it is about a key.
    """

    def __init__(self, message: str, command: str = "") -> None:
        super().__init__(message)
        self.command = command


class UnsignedTaskError(ServerRefusedError):
    """The queue's workers run signed tasks only, and this process has no key to sign with. Nothing of the call was pushed.

    Call `django_fairque.tasks.signing.sign_with` with the project's ``SECRET_KEY`` first, or set up Django with the
    project's settings; ``SIGNING`` must not be ``"off"`` there.
    """


class UntrustedServerError(RedisConnectionError):
    """The server's certificate can't be trusted: it has expired, or is from another authority or for another name.
    Nothing was sent.
    """


class ShardsAwayError(RedisConnectionError):
    """Some ``shards`` of a queue (their numbers) can't be reached, and the request can't be carried out without them.

    ``message`` is the text. If many tasks were pushed, ``task_ids`` are the ids of the tasks that may not have arrived;
    none by default. The others were accepted. Pushing tasks again under the same ids is safe: while the first task has
    not ended, the second push is a duplicate. A task with an id that you have chosen runs again if the first has ended.
    """

    def __init__(self, message: str, shards: Sequence[int] = (), task_ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.shards = tuple(shards)
        self.task_ids = tuple(task_ids)


class NotReplicatedError(RedisConnectionError):
    """The primary has accepted the tasks, but fewer replicas (``confirmed``) than ``wanted`` have confirmed it in time.

    ``message`` is the text; the numbers are 0 by default. If a failover happens soon, the tasks may be lost; otherwise
    they will run. Pushing them again under the same ids is safe, as for `ShardsAwayError`.
    """

    def __init__(self, message: str, confirmed: int = 0, wanted: int = 0) -> None:
        super().__init__(message)
        self.confirmed = confirmed
        self.wanted = wanted


class UnsupportedServerError(ConfigurationError, RedisConnectionError):
    """The server can't be trusted with tasks: it is too old, or it evicts keys when memory is short."""


class LuaScriptError(FairQueueError):
    """A script failed, and no other error class fits.

    ``script_name`` is the script's file name without ``.lua``, ``error_details`` the server's text.
    """

    def __init__(self, script_name: str, error_details: str) -> None:
        super().__init__(f"script {script_name!r} failed: {error_details}")
        self.script_name = script_name
        self.error_details = error_details

    def __reduce__(self) -> tuple[type[LuaScriptError], tuple[str, str]]:
        return type(self), (self.script_name, self.error_details)


MAX_QUOTED_CHARACTERS = 80
"""The largest number of characters of a value in a message."""


class _Repr(reprlib.Repr):
    """A `reprlib.Repr` that limits the length of the text, and never fails."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = (
            self.maxarray
        ) = 20
        self.maxstring = self.maxother = self.maxlong = 4 * MAX_QUOTED_CHARACTERS

    def repr_str(self, value: str, level: int) -> str:  # noqa: ARG002 - as the base class calls it
        return repr(value[: self.maxstring])

    def repr_bytes(self, value: bytes, level: int) -> str:  # noqa: ARG002 - as the base class calls it
        return repr(value[: self.maxstring])

    def repr_int(self, value: int, level: int) -> str:  # noqa: ARG002 - as the base class calls it
        # Python refuses to write integers of more than 4,300 digits.
        return repr(value) if value.bit_length() < self.maxlong else f"<an integer of {value.bit_length()} bits>"


_repr = _Repr().repr


def short(value: object, longest: int = MAX_QUOTED_CHARACTERS) -> str:
    """Return ``repr(value)``, shortened to ``longest`` characters. Never fails, and takes no longer for large values."""
    try:
        text = _repr(value)
        is_sized = isinstance(value, (str, bytes, list, tuple, dict))
        size = f" ({len(value):,} long)" if is_sized and len(value) > longest else ""  # type: ignore[arg-type]
    except BaseException as error:  # a broken __repr__ must not take the place of the error that is about to be raised
        if is_a(error, Interruption):
            raise
        text, size = f"<{type_name(value)}>", ""
    return text if len(text) <= longest else f"{text[: longest - 3]}...{size}"


def short_text(text: str, longest: int = 4 * MAX_QUOTED_CHARACTERS) -> str:
    """Return ``text`` cut to ``longest`` characters. Use it for a text that may contain a caller's value, such as a name."""
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that was probably meant, or an empty string."""
    if len(word) > MAX_QUOTED_CHARACTERS:
        return ""  # comparing such a long word would take seconds
    spelled, word = {name.lower(): name for name in known}, word.lower()
    alike = difflib.get_close_matches(word, spelled, n=1) or [
        name for name in spelled if word and name.startswith(word)
    ]
    return spelled[alike[0]] if len(alike) == 1 else ""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown word: the known word that was probably meant, or all of them."""
    near = nearest(word, known)
    return f"did you mean {near!r}?" if near else f"expected one of {', '.join(known)}"
