"""The directory belongs to one user only, whatever it is called."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_fairque.embedded.directory import MARKER
from django_fairque.engine.model.errors import ConfigurationError
from tests.embedded.helpers import only_server_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_fairque.embedded import EmbeddedServer
    from tests.embedded.conftest import MakeEmbedded

SOMEBODY_ELSE = 12345

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def make_ours(embedded: EmbeddedServer) -> None:
    """Make the directory as a start does."""
    embedded.directory.mkdir()
    (embedded.directory / MARKER).touch()


class TestExistingDirectories:
    """A directory is used if it is empty or ours; any other stays as it is."""

    @pytest.mark.parametrize(
        "names", [["precious"], ["data", "server.log"], ["start.lock"], ["start.lock", "precious"], [".gitignore"]]
    )
    @pytest.mark.parametrize("action", ["ensure", "stop", "restart", "status"])
    def test_a_directory_with_other_files_is_refused_and_unchanged(
        self, embedded: EmbeddedServer, names: list[str], action: str
    ) -> None:
        embedded.directory.mkdir()
        embedded.directory.chmod(0o755)
        for name in names:
            (embedded.directory / name).write_text("precious")
        with pytest.raises(
            ConfigurationError, match=r"holds files of something else .* such as .*/fairque, with embedded"
        ):
            getattr(embedded, action)()
        assert mode(embedded.directory) == 0o755
        assert sorted(path.name for path in embedded.directory.iterdir()) == sorted(names)

    def test_the_root_directory_is_refused_unchanged(self, make_embedded: MakeEmbedded) -> None:
        before = mode(Path("/")), sorted(Path("/").iterdir())
        with pytest.raises(ConfigurationError, match=r"/ (exists and holds files of something else|belongs to uid)"):
            make_embedded(Path("/")).ensure()
        assert (mode(Path("/")), sorted(Path("/").iterdir())) == before

    def test_an_empty_directory_is_used(self, embedded: EmbeddedServer) -> None:
        embedded.directory.mkdir()
        assert embedded.status().running is False
        assert embedded.stop() is False
        assert list(embedded.directory.iterdir()) == []
        assert embedded.start() is True
        assert (embedded.directory / MARKER).is_file()


class TestPermissions:
    @pytest.fixture
    def no_umask(self) -> Iterator[None]:
        before = os.umask(0)
        yield
        os.umask(before)

    def test_the_server_s_files_are_private_with_any_umask(self, embedded: EmbeddedServer, no_umask: None) -> None:
        embedded.ensure()
        paths = [embedded.directory, *embedded.directory.rglob("*")]
        assert {path.name for path in paths} >= {"s.sock", "server.log", "start.lock", "server.lock", "appendonlydir"}
        assert {str(path): oct(mode(path)) for path in paths} == {
            str(path): "0o700" if path.is_dir() else "0o600" for path in paths
        }

    def test_wide_permissions_of_a_server_s_files_are_tightened(self, embedded: EmbeddedServer) -> None:
        make_ours(embedded)
        embedded.directory.chmod(0o777)
        log = embedded.directory / "server.log"
        log.touch()
        log.chmod(0o666)
        embedded.ensure()
        assert (mode(embedded.directory), mode(log)) == (0o700, 0o600)

    def test_git_ignores_the_server_s_directory(self, embedded: EmbeddedServer) -> None:
        embedded.ensure()
        assert (embedded.directory / ".gitignore").read_text() == "*\n"


class TestLinks:
    def test_a_link_to_a_directory_is_refused(self, embedded: EmbeddedServer, place: Path) -> None:
        target = place / "target"
        target.mkdir()
        embedded.directory.symlink_to(target)
        with pytest.raises(ConfigurationError, match="is a link or a file, expected a directory"):
            embedded.ensure()
        assert list(target.iterdir()) == []

    @pytest.mark.parametrize("name", ["start.lock", "server.lock", "server.log", "server.json"])
    def test_a_link_in_place_of_server_files_is_refused(self, embedded: EmbeddedServer, place: Path, name: str) -> None:
        target = place / "target"
        target.write_text("precious")
        target.chmod(0o644)
        make_ours(embedded)
        (embedded.directory / name).symlink_to(target)
        with pytest.raises(ConfigurationError, match=f"{name} is a symbolic link, expected a regular file"):
            embedded.ensure()
        assert (target.read_text(), mode(target)) == ("precious", 0o644)

    @pytest.mark.parametrize("name", ["start.lock", "server.lock", "server.log"])
    def test_a_hard_link_to_a_server_file_is_refused(self, embedded: EmbeddedServer, place: Path, name: str) -> None:
        target = place / "target"
        target.write_text("precious")
        target.chmod(0o644)
        make_ours(embedded)
        (embedded.directory / name).hardlink_to(target)
        with pytest.raises(ConfigurationError, match="hard link"):
            embedded.ensure()
        assert (target.read_text(), mode(target)) == ("precious", 0o644)

    def test_a_link_in_place_of_the_data_directory_is_refused(self, embedded: EmbeddedServer, place: Path) -> None:
        target = place / "target"
        target.mkdir()
        make_ours(embedded)
        (embedded.directory / "data").symlink_to(target)
        with pytest.raises(ConfigurationError, match="data is a symbolic link"):
            embedded.ensure()
        assert list(target.iterdir()) == []

    @pytest.mark.parametrize("name", ["valkey.conf", "valkey.conf.new", ".gitignore"])
    def test_a_link_in_place_of_a_file_that_is_written_anew_is_replaced(
        self, embedded: EmbeddedServer, place: Path, name: str
    ) -> None:
        target = place / "target"
        target.write_text("precious")
        make_ours(embedded)
        (embedded.directory / name).symlink_to(target)
        embedded.ensure()
        assert target.read_text() == "precious"
        assert not (embedded.directory / name).is_symlink()

    def test_a_path_through_a_link_leads_to_the_same_server(self, make_embedded: MakeEmbedded, place: Path) -> None:
        (place / "real").mkdir()
        (place / "link").symlink_to(place / "real")
        assert make_embedded("real/.fairque").start() is True
        assert make_embedded("link/.fairque").start() is False
        assert make_embedded("link/.fairque").socket == make_embedded("real/.fairque").socket


class TestForeignFiles:
    def test_a_foreign_directory_is_refused(self, embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        embedded.directory.mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: SOMEBODY_ELSE)
        with pytest.raises(ConfigurationError, match=f"expected uid {SOMEBODY_ELSE}, which this process runs as"):
            embedded.ensure()

    @only_root
    @pytest.mark.parametrize("name", ["start.lock", "server.lock", "server.log"])
    def test_a_file_of_another_user_is_refused(self, embedded: EmbeddedServer, name: str) -> None:
        make_ours(embedded)
        (embedded.directory / name).touch()
        os.chown(embedded.directory / name, SOMEBODY_ELSE, -1)
        with pytest.raises(ConfigurationError, match=f"{name} belongs to uid {SOMEBODY_ELSE}"):
            embedded.ensure()

    @only_root
    def test_a_socket_of_another_user_is_refused_even_if_a_server_answers_on_it(self, embedded: EmbeddedServer) -> None:
        os.chown(embedded.ensure(), SOMEBODY_ELSE, -1)
        with pytest.raises(ConfigurationError, match=r"s\.sock belongs to uid"):
            embedded.ensure()

    def test_a_file_in_place_of_the_socket_is_refused(self, embedded: EmbeddedServer) -> None:
        embedded.directory.mkdir()
        Path(embedded.socket).write_text("precious")
        with pytest.raises(ConfigurationError, match=r"s\.sock is a link or a file, expected a unix socket"):
            embedded.ensure()
        assert Path(embedded.socket).read_text() == "precious"

    def test_a_pipe_in_place_of_a_lock_file_is_refused_without_waiting(self, embedded: EmbeddedServer) -> None:
        make_ours(embedded)
        os.mkfifo(embedded.directory / "start.lock")
        with pytest.raises(ConfigurationError, match="no regular file"):
            embedded.ensure()

    def test_a_file_in_place_of_the_directory_is_refused(self, embedded: EmbeddedServer) -> None:
        embedded.directory.write_text("precious")
        with pytest.raises(ConfigurationError, match="expected a directory"):
            embedded.ensure()


class TestPaths:
    @pytest.mark.parametrize(
        "name",
        ["a space", 'a "quote"', "it's", "back\\slash", "new\nline", "#hash", "ümläut", "日本", os.fsdecode(b"\xff")],
        ids=ascii,
    )
    def test_the_path_of_the_directory_may_contain_any_character(self, make_embedded: MakeEmbedded, name: str) -> None:
        embedded = make_embedded(name)
        assert embedded.ensure() == str(embedded.directory / "s.sock")
        assert embedded.status().pid == only_server_of(embedded.directory)
        assert (embedded.directory / "data/appendonlydir").is_dir()
        assert embedded.stop() is True

    def test_the_path_of_the_directory_may_be_longer_than_a_socket_s(
        self, make_embedded: MakeEmbedded, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        embedded = make_embedded("x" * 120)
        path = Path(embedded.ensure())
        assert len(str(path)) <= 100
        assert path.is_socket()
        assert (mode(path), mode(path.parent)) == (0o600, 0o700)
        # Every process has to come to the same path, whatever its environment.
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        assert make_embedded("x" * 120).start() is False

    def test_a_link_in_place_of_a_socket_directory_is_refused(self, make_embedded: MakeEmbedded, place: Path) -> None:
        embedded = make_embedded("y" * 120)
        target = place / "target"
        target.mkdir()
        Path(embedded.socket).parent.symlink_to(target)
        try:
            with pytest.raises(ConfigurationError, match="expected a directory"):
                embedded.ensure()
        finally:
            Path(embedded.socket).parent.unlink()
        assert list(target.iterdir()) == []

    def test_the_path_of_the_directory_may_be_relative(
        self, make_embedded: MakeEmbedded, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(place)
        assert make_embedded(Path("relative")).directory == place / "relative"

    def test_a_path_needs_no_installed_locale(self, embedded: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LC_ALL", "xx_YY")
        assert embedded.start() is True


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows what a process was started with")
def test_the_allocator_is_configured_before_the_server_starts(embedded: EmbeddedServer) -> None:
    embedded.ensure()
    environment = Path(f"/proc/{only_server_of(embedded.directory)}/environ").read_bytes().split(b"\0")
    assert b"GLIBC_TUNABLES=glibc.malloc.tcache_count=1000" in environment
