"""Decides whether and when a failed request to the server is sent again, and which error is raised if it is not.

This module concerns requests only; `tasks.retries` decides whether a failed task is retried.

A reply that was lost says nothing about its call, so the call is repeated as it was: it carries a nonce or a
lease token, or changes nothing. The client library's own retries are not used, because they would repeat any command.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic

from redis import exceptions as redis_errors

from django_fairque.engine.model import errors
from django_fairque.engine.model.data_format import format_error
from django_fairque.engine.model.durations import JITTER
from django_fairque.engine.scripting.commands import queue_of_key
from django_fairque.engine.scripting.operations import ScriptCall, SingleRequest
from django_fairque.engine.transport import cluster as clusters

PASSING_ERROR_CODES = ("LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "UNBLOCKED")
"""Answers that mean "not now": nothing was executed, and a later attempt may succeed."""

CLIENT_ERRORS = (redis_errors.RedisError, redis_errors.RedisClusterException)
"""Errors that the client raises. The error of its cluster client is no `RedisError`."""

NOT_STARTED_ERRORS = (redis_errors.BusyLoadingError, redis_errors.AuthenticationError)
"""Errors of a connection that came before the call was sent."""

REFUSAL_REASONS = {
    "OOM": "the server is out of memory; new tasks are refused until the backlog has drained",
    "MISCONF": "the server can't write to its disk and refuses changes; free space or fix its persistence",
    "NOREPLICAS": "the server has fewer replicas than min-replicas-to-write asks for",
    "READONLY": "the server is a read-only replica; connect to the primary",
    "NOAUTH": "the server asks for a password; set REDIS's USERNAME and PASSWORD",
    "WRONGPASS": "the server refused the user name or password",
    "UNSIGNED": "the queue's workers run signed tasks only, and this process signs none; nothing of this call was pushed. Call "
    "django_fairque.tasks.signing.sign_with(key) with the SECRET_KEY of the workers' project before you push, or set up Django "
    "with its settings, where SIGNING is not 'off' and INSTALLED_APPS has django_fairque",
}


class RetryPolicy:
    """Decides after each failed attempt of one request about the next attempt. There is none after ``seconds`` have
    passed, or if ``is_futile()`` is true.
    """

    def __init__(self, request: SingleRequest, seconds: float, is_futile: Callable[[], bool] = lambda: False) -> None:
        self._is_futile = is_futile
        self._request = request
        self.what = request.script if isinstance(request, ScriptCall) else "a command"
        self.deadline = monotonic() + seconds
        self.attempts = 0
        self.loads = 0
        self.loads_function = False
        """Whether the server lacks the function, so that it is loaded before the next attempt."""
        self.as_script = False
        """Whether the function could not be loaded, so that the call is sent as a script."""
        self.is_in_doubt = False
        """Whether a reply was lost: the server may have executed the request already, whatever it answers later."""
        self.reloads_topology = False
        """Whether a slot may have moved to another node, so that the slot map is loaded again before the next attempt."""

    def get_pause(self, error: Exception) -> float:
        """Return the seconds to wait before the next attempt. If there is no next attempt, raise the queue's own error
        for this error.
        """
        self.attempts += 1
        error = clusters.underlying_error(error)
        self.reloads_topology = isinstance(error, clusters.STALE_TOPOLOGY_ERRORS)
        text = str(error)
        code = _error_code(text)
        if isinstance(error, redis_errors.NoScriptError):
            self.loads += 1
            if self.loads <= 3:
                return 0.0
            raise errors.LuaScriptError(self.what, "the server forgets scripts as fast as they are loaded") from error
        if isinstance(error, redis_errors.ResponseError) and text.startswith("Function not found"):
            self.loads += 1
            self.loads_function = True
            if self.loads <= 3:
                return 0.0
            raise errors.LuaScriptError(self.what, "the server forgets functions as fast as they are loaded") from error
        is_untrusted = clusters.UNTRUSTED_CERTIFICATE_TEXT in text
        if isinstance(error, clusters.CONNECTION_LOST_ERRORS) and not isinstance(error, NOT_STARTED_ERRORS):
            self.is_in_doubt = self.is_in_doubt or not is_untrusted
        is_refused = isinstance(error, (redis_errors.AuthenticationError, redis_errors.NoPermissionError))
        passing = (self.reloads_topology or code in PASSING_ERROR_CODES) and not (is_refused or is_untrusted)
        pause: float = min(0.5, 0.01 * 2.0 ** min(self.attempts, 10)) * JITTER.uniform(0.5, 1.0)
        if passing and monotonic() + pause < self.deadline and not self._is_futile():
            return pause
        if isinstance(error, redis_errors.MovedError) and self.attempts == 1:
            return 0.0  # one more attempt even after the deadline: the reloaded slot map names the right node
        found = translate_error(error, self.what, self.attempts, self._queue())
        if self.is_in_doubt and isinstance(found, errors.ServerRefusedError):
            found = errors.RedisConnectionError(
                f"{self.what} may have been carried out: its reply was lost, and then {found}"
            )
        raise found from error

    def _queue(self) -> str:
        return queue_of_key(self._request.keys[0]) if isinstance(self._request, ScriptCall) else ""


def translate_error(
    error: Exception, what: str = "a command", attempts: int = 1, queue: str = ""
) -> errors.FairQueueError:
    """Return the queue's own error for an error of the client."""
    kinds = {
        redis_errors.OutOfMemoryError: "OOM",
        redis_errors.ReadOnlyError: "READONLY",
        redis_errors.NoPermissionError: "NOPERM",
        redis_errors.AuthenticationError: "WRONGPASS",
    }
    error = clusters.underlying_error(error)
    text = str(error)
    if clusters.CLUSTER_DISABLED_TEXT in text:
        return errors.UnsupportedServerError(
            "the server is none of a cluster (cluster-enabled no); leave REDIS's CLUSTER out, or name a node"
        )
    code = next((known for kind, known in kinds.items() if isinstance(error, kind)), _error_code(text))
    if code == "NOPERM" or text.startswith("ACL failure in script"):
        return not_permitted_error(text)
    if code in REFUSAL_REASONS:
        refused = errors.UnsignedTaskError if code == "UNSIGNED" else errors.ServerRefusedError
        return refused(f"{REFUSAL_REASONS[code]} (the server said: {text})")
    if clusters.UNTRUSTED_CERTIFICATE_TEXT in text:
        return errors.UntrustedServerError(
            f"the server's certificate is not trusted: {text}; REDIS's SSL_CA_CERTS names the authority, and the host must be "
            "named as in the certificate"
        )
    if code in PASSING_ERROR_CODES or isinstance(error, clusters.STALE_TOPOLOGY_ERRORS):
        return _unavailable_error(error, text, attempts)
    return _script_error(text, what, queue)


def _script_error(text: str, what: str, queue: str) -> errors.FairQueueError:
    if found := _OTHER_FORMAT.match(text):
        return format_error(queue, int(found[1]), found[2] or "")
    return errors.LuaScriptError(what, text)


def _unavailable_error(error: Exception, text: str, attempts: int) -> errors.RedisConnectionError:
    if isinstance(error, (*clusters.CONNECTION_LOST_ERRORS, redis_errors.RedisClusterException)):
        return errors.RedisConnectionError(
            f"the server can't be reached: {text or type(error).__name__} ({attempts} attempts); "
            f"is it running where REDIS points to?"
        )
    reason = (
        "the cluster is moving these keys to another server" if isinstance(error, clusters.REDIRECT_ERRORS) else text
    )
    return errors.ServerRefusedError(f"the server refuses work for now: {reason}")


_OTHER_FORMAT = re.compile(r"FORMAT (\d+)(?: (\d\S*))?")
_COMMAND = re.compile(r"'([\w|]+)' command")


def not_permitted_error(text: str) -> errors.NotPermittedError:
    """Return the error for a missing permission: for a command outside or inside of scripts, or for a key."""
    found = _COMMAND.search(text)
    command = found[1].replace("|", " ").upper() if found else ""
    what = f"run {command}" if command else "use these keys"
    hint = "manage.py fairque_acl prints the rules that a producer, a worker and a viewer need"
    if command in ("EVAL", "EVALSHA", "SCRIPT LOAD", "FUNCTION LOAD"):
        hint += "; without scripts, manage.py fairque_functions must have loaded this version's functions"
    return errors.NotPermittedError(
        f"the server does not permit this user to {what} (it said: {text}); {hint}", command
    )


def _error_code(text: str) -> str:
    """Return the first word of an answer, such as LOADING or ERR."""
    return text.split(" ", 1)[0].rstrip(":")
