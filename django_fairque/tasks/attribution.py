"""Whose work the code does that runs here. Tasks that name no user are for that one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from .ambient import Ambient
from .options import user_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from typing import ParamSpec

    from .context import TaskContext

    P = ParamSpec("P")

R = TypeVar("R")


class UserSource(ABC):
    """Finds a user's id when somebody asks for it, and not before."""

    @abstractmethod
    def user_id(self) -> str | None: ...

    @abstractmethod
    async def auser_id(self) -> str | None: ...


def _user_of(task: TaskContext) -> str | None:
    """Whose the running task is; of a batch only if all its items are one user's."""
    users = {item.user_id for item in task.batch} or {task.user_id}
    return (users.pop() or None) if len(users) == 1 else None


_current_user: Ambient[str | UserSource | None] = Ambient("fairque_user", _user_of)


def as_user(user: object) -> AbstractContextManager[None]:
    """Work for this user in the block: tasks enqueued there are for them, unless they say whom they are for.

    A plain ``with``, in coroutines too. Blocks nest; the innermost counts.

    Args:
        user: text, an integer key or a UUID; None for nobody.

    Raises:
        TaskValidationError: it is no id.
    """
    return _current_user.hold(None if user is None else user_id(user, "the user"))


def as_user_of(source: UserSource) -> AbstractContextManager[None]:
    """As `as_user`, with the user that the source finds if somebody asks."""
    return _current_user.hold(source)


def current_user_id() -> str | None:
    """For whom work is done here: `as_user`'s, the running task's, the request's user, or None.

    Raises:
        TaskUsageError: in a coroutine, where looking up the request's user would block: `acurrent_user_id` awaits it.
    """
    current = _current_user.get()
    return current.user_id() if isinstance(current, UserSource) else current


async def acurrent_user_id() -> str | None:
    """As `current_user_id`, where looking up the request's user has to be awaited."""
    current = _current_user.get()
    return await current.auser_id() if isinstance(current, UserSource) else current


async def knowing_user(build: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``build``, which may ask for the current user and must not block, when that user is known."""
    if not isinstance(_current_user.get(), UserSource):
        return build(*args, **kwargs)
    with as_user(await acurrent_user_id()):
        return build(*args, **kwargs)
