"""How a script is called: as a function that the server keeps, or as a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors

from django_fairque.engine.model.errors import NotReplicatedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_fairque.engine.scripting.operations import ScriptCall
    from django_fairque.engine.scripting.scripts import Script
    from django_fairque.engine.transport.retry_policy import RetryPolicy


class FunctionCaller:
    """How commands are called: as functions, or as scripts where this user or server has no functions."""

    def __init__(self) -> None:
        self.as_functions = True

    def use_functions(self, policy: RetryPolicy) -> bool:
        return self.as_functions and not policy.as_script

    def command(self, request: ScriptCall, keys: Sequence[str], script: Script, policy: RetryPolicy) -> tuple[Any, ...]:
        if self.use_functions(policy):
            how: tuple[Any, ...] = ("FCALL", script.function)
        else:
            how = ("EVAL", script.source) if policy.loads > 1 else ("EVALSHA", script.sha)
        return (*how, len(keys), *keys, *request.args)

    def handle_load_error(self, error: Exception, policy: RetryPolicy) -> None:
        """A function can't be loaded: this call goes as a script. A server that is full still drains so.

        Who may call functions and not load them will find them when a deployment has loaded them: they are tried again.
        """
        policy.as_script, policy.loads_function, policy.loads = True, False, 0
        if not isinstance(error, redis_errors.NoPermissionError):
            self.switch_to_scripts(error)

    def switch_to_scripts(self, error: Exception) -> bool:
        """Whether this error of calling or loading one means that there are none here; from then on scripts are used."""
        text = str(error).lower()
        if isinstance(error, redis_errors.NoPermissionError) or text.startswith(("noperm", "unknown command")):
            was, self.as_functions = self.as_functions, False
            return was
        return False


def with_confirmation(request: ScriptCall, command: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield command
    yield "HINCRBY", request.keys[0], "confirmations", 1
    yield "WAIT", request.replicas, max(1, round(request.replication_timeout * 1000))


def check_confirmed(request: ScriptCall, replies: Sequence[Any]) -> Any:
    """The reply to the call itself.

    Raises:
        NotReplicatedError: it was executed, and too few replicas have confirmed it.
    """
    failure = next((reply for reply in replies if isinstance(reply, Exception)), None)
    if failure is not None:
        raise failure
    reply, _, count = replies
    if int(count) < request.replicas:
        raise NotReplicatedError(
            f"{int(count)} of {request.replicas} replicas (replicas_to_confirm) confirmed within "
            f"{request.replication_timeout:g} s what the primary has taken: whether it outlives a failover is unknown",
            int(count),
            request.replicas,
        )
    return reply
