"""`EmbeddedServer`: one project's development server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_fairque.embedded.site import ServerSite
from django_fairque.embedded.starting import ensure_running, forbid_starts
from django_fairque.embedded.status import ServerStatus, read_status
from django_fairque.embedded.stopping import stop_server
from django_fairque.engine.model.errors import RedisConnectionError

if TYPE_CHECKING:
    import os
    from pathlib import Path


class EmbeddedServer:
    """The server whose data, log and socket are in ``directory`` (made if its parent exists).

    An object holds nothing open: any number of them, in any number of processes and threads, name the same server. It
    is stopped by `stop` only, not by the end of whoever started it.

    Parameters
    ----------
    directory
        New, empty, or made by an earlier start; its permissions become those of its owner alone. Any other existing directory, a
        link and somebody else's are refused.
    binary
        The server to run; by default what `find_binary` finds.
    appendfsync
        "everysec": a power cut may cost the last second or two. "always": nothing, at about half the speed.
    timeout
        Seconds without any answer after which a call gives up.
    answer_timeout
        The same for a server that runs and does not answer, because it hangs or was suspended; ``timeout`` by default.

    Raises
    ------
    ConfigurationError
        There is no binary, or the directory can't be used.
    RedisConnectionError
        The server does not start, or lives and does not answer.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        binary: str | os.PathLike[str] | None = None,
        appendfsync: str = "everysec",
        timeout: float = 10.0,
        answer_timeout: float | None = None,
    ) -> None:
        self._site = ServerSite.at(
            directory, binary=binary, appendfsync=appendfsync, timeout=timeout, answer_timeout=answer_timeout
        )

    @property
    def directory(self) -> Path:
        return self._site.directory

    @property
    def socket(self) -> str:
        """The socket's path, the same whether the server runs or not."""
        return str(self._site.socket)

    def ensure(self) -> str:
        """Return the path of the socket, on which a server answers now (0.2 ms if it did already)."""
        self.start()
        return self.socket

    def start(self) -> bool:
        """As `ensure`; true if this call started the server."""
        try:
            return ensure_running(self._site)
        except OSError as error:
            raise self._failed("started", error) from error

    def stop(self) -> bool:
        """End the server, its file written and synced; false if none was running."""
        try:
            return stop_server(self._site)
        except OSError as error:
            raise self._failed("stopped", error) from error

    def retire(self) -> bool:
        """As `stop`, and no thread of this process starts it again: for a directory that is about to be removed."""
        forbid_starts(self._site)
        return self.stop()

    def restart(self) -> None:
        """Stop and start, with the binary and the options of now."""
        self.stop()
        self.start()

    def status(self) -> ServerStatus:
        try:
            return read_status(self._site)
        except OSError as error:
            raise self._failed("looked at", error) from error

    def _failed(self, what: str, error: OSError) -> RedisConnectionError:
        return RedisConnectionError(f"the embedded server in {self.directory} can't be {what}: {error}")
