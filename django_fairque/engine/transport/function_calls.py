"""How a script is called: as a function that the server keeps, or as a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis import exceptions as redis_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_fairque.engine.scripting.operations import Call
    from django_fairque.engine.scripting.scripts import Script
    from django_fairque.engine.transport.retry_policy import Patience


class Calls:
    """How commands are called: as functions, or as scripts where this user or server has no functions."""

    def __init__(self) -> None:
        self.as_functions = True

    def use_functions(self, patience: Patience) -> bool:
        return self.as_functions and not patience.as_script

    def command(self, request: Call, keys: Sequence[str], script: Script, patience: Patience) -> tuple[Any, ...]:
        if self.use_functions(patience):
            how: tuple[Any, ...] = ("FCALL", script.function)
        else:
            how = ("EVAL", script.source) if patience.loads > 1 else ("EVALSHA", script.sha)
        return (*how, len(keys), *keys, *request.args)

    def not_loaded(self, error: Exception, patience: Patience) -> None:
        """A function can't be loaded: this call goes as a script. A server that is full still drains so.

        Who may call functions and not load them will find them when a deployment has loaded them: they are tried again.
        """
        patience.as_script, patience.loads_function, patience.loads = True, False, 0
        if not isinstance(error, redis_errors.NoPermissionError):
            self.is_without_functions(error)

    def is_without_functions(self, error: Exception) -> bool:
        """Whether this error of calling or loading one means that there are none here; from then on scripts are used."""
        text = str(error).lower()
        if isinstance(error, redis_errors.NoPermissionError) or text.startswith(("noperm", "unknown command")):
            was, self.as_functions = self.as_functions, False
            return was
        return False
