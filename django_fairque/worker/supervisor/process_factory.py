"""Where children come from: spawned one by one, or forked from a process that has loaded the project.

A fork server is started at once if it can be a copy of this process, which spares it to load the project again, else when the
first child is wanted; again when it has died, and anew when the code has changed: the former one stays until its children have
ended, which die with it.
"""

from __future__ import annotations

import os
from multiprocessing import get_context
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from django_fairque.worker.execution.status_board import StatusBoard
from django_fairque.worker.reporting.log import logger
from django_fairque.worker.supervisor import child_main as child
from django_fairque.worker.supervisor.child_limits import REPLACED_AFTER, UNHEALTHY_AFTER
from django_fairque.worker.supervisor.fork_client import ForkServer, ForkServerGoneError, can_fork, may_be_copied

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from django_fairque.worker.options import WorkerOptions


class Process(Protocol):
    """What is needed of `multiprocessing.Process`."""

    @property
    def pid(self) -> int | None: ...
    @property
    def sentinel(self) -> int: ...
    @property
    def exitcode(self) -> int | None: ...
    def kill(self) -> None: ...
    def join(self) -> None: ...
    def close(self) -> None: ...


class ProcessFactory:
    """Used by the main thread only, and closed at the end.

    Args:
        copied: whether the first fork server may be a copy of this process.
    """

    def __init__(self, options: WorkerOptions, shard_count: int, *, copied: bool = False) -> None:
        self._options, self._shard_count = options, shard_count
        self._context = get_context("spawn")
        self._forks = options.start_method != "spawn"
        self._is_fork_required = options.start_method == "forkserver"
        self._server: ForkServer | None = None
        self._former: list[ForkServer] = []
        if self._forks and not can_fork():
            self._spawn_instead(
                "this system can't tell processes apart safely enough (Linux has been able to since 5.3)"
            )
        elif self._forks and copied and may_be_copied():
            self._server = ForkServer(self._context, options, shard_count, copy=True)

    @property
    def connections(self) -> Sequence[ForkServer]:
        """What has news when it can be read; `tend` takes them in."""
        return self._servers()

    def is_ready(self) -> bool:
        """Whether a child can begin now. If not, it can't until `tend` had news."""
        if self._forks and self._server is None:
            self._server = ForkServer(self._context, self._options, self._shard_count)
        return not self._forks or (self._server is not None and self._server.is_ready)

    def start_child(self, options: WorkerOptions) -> tuple[StatusBoard, Process, Connection]:
        """A child, and this end of the line to it.

        Raises:
            ForkServerGoneError: it can't begin now; see `is_ready`.
        """
        near, far = self._context.Pipe()
        try:
            if self._server is not None:
                return *self._server.fork(options, far), near
            status_board = StatusBoard.shared(self._context, options.concurrency, self._shard_count)
            process = self._context.Process(
                target=child.run_spawned_child, args=(options, status_board, far, os.getpid()), name=options.worker_id
            )
            process.start()
        except ForkServerGoneError:
            near.close()
            raise
        finally:
            far.close()
        return status_board, process, near

    def read_messages(self) -> bool:
        """Take in what fork servers have said; whether one could not begin."""
        for each in self._servers():
            each.read_messages()
        for each in [each for each in self._former if each.is_gone or not each.children]:
            self._former.remove(each)
            each.close()
        server = self._server
        if server is None:
            return False
        obstacle = self._obstacle_to(server)
        if obstacle:
            self._server = None
            server.close()
            self._spawn_instead(obstacle)
        return self._is_dead(server) or self._is_stuck(server)

    def _obstacle_to(self, server: ForkServer) -> str:
        """Why it is not to be forked, if anything speaks against it. Who asks for forks answers for the project's connections."""
        if server.threads is not None:
            known = f" ({', '.join(server.threads)})" if server.threads else ""
            return f"the project has started threads{known}, which no forked process would have"
        if server.connections and not self._is_fork_required:
            known = ", ".join(server.connections)
            return f"importing the project opened connections ({known}), which all forked processes would share"
        return ""

    def _is_dead(self, server: ForkServer) -> bool:
        """Whether it could not begin. One that died later is replaced like any child."""
        if not server.is_gone or server is not self._server:
            return False
        self._server = None
        if server.is_ready:
            logger.error("the fork server of worker %s died, and its processes with it", self._options.worker_id)
        server.close()
        return not server.is_ready

    def _is_stuck(self, server: ForkServer) -> bool:
        longest = self._options.poll_interval + UNHEALTHY_AFTER + REPLACED_AFTER
        if server is not self._server or server.is_ready or monotonic() - server.started_at < longest:
            return False
        logger.error("the fork server of worker %s has not begun within %g s", self._options.worker_id, longest)
        self._server = None
        server.close()
        return True

    def renew(self) -> None:
        """Let children that begin from now on have the code as it is now."""
        if self._server is not None:
            self._former.append(self._server)
            self._server = None

    def close(self) -> None:
        """When there are no children any more. Closing again does nothing."""
        servers = self._servers()
        self._server, self._former = None, []
        for server in servers:
            server.close()

    def _servers(self) -> list[ForkServer]:
        return [*self._former, *([self._server] if self._server is not None else [])]

    def _spawn_instead(self, why: str) -> None:
        self._forks = False
        if self._is_fork_required:
            logger.warning("processes are spawned, although START_METHOD is forkserver: %s", why)
        else:
            logger.info("processes are spawned, not forked: %s", why)
