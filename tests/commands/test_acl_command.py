"""Rules for the server's users, as commands and as lines of a file, on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import CommandError

from django_fairque.conf import close_queues, get_queue
from django_fairque.engine.model.errors import NotPermittedError
from django_fairque.engine.model.task import Task
from tests.fixture_types import FairQueue, MakeServer, Redis, Server, Settings

from .conftest import Run


def test_the_printed_rules_are_accepted_by_the_server(queue: FairQueue, redis: Redis, run: Run) -> None:
    printed = run("fairque_acl").splitlines()
    assert [line.split()[2] for line in printed] == [
        f"fairque-{role}" for role in ("producer", "worker", "viewer", "deployer")
    ]
    for line in printed:
        assert redis.execute_command(*line.split()) in (True, b"OK")
    users = str(redis.acl_users())
    redis.acl_deluser(*(line.split()[2] for line in printed))
    assert all(line.split()[2] in users for line in printed)


def test_a_server_starts_with_the_printed_file_of_users(
    run: Run, queue: FairQueue, make_server: MakeServer, tmp_path: Path
) -> None:
    file = tmp_path / "users.acl"
    file.write_text(f"user default on nopass ~* &* +@all\n{run('fairque_acl', '--aclfile', '--worker', '--viewer')}")
    with make_server("--aclfile", str(file)).client() as client:
        assert "fairque-worker" in str(client.acl_users())


def test_rules_name_the_prefix_and_the_user(run: Run, queue: FairQueue, settings: Settings, server: Server) -> None:
    assert "%R~fq:*" in run("fairque_acl", "--viewer")
    (line,) = run("fairque_acl", "--viewer", "--prefix", "mail", "--name", "mail-{role}", "--cluster").splitlines()
    assert line.startswith("ACL SETUSER mail-viewer on resetkeys resetchannels %R~mail:* -@all +ping")
    assert "+cluster|slots" in line
    settings.FAIRQUE = {"REDIS": {"URL": server.url}, "QUEUE": {"PREFIX": "other"}}
    assert "~other:{*}:stats " in run("fairque_acl", "--producer")


def test_rules_depend_on_functions_or_scripts(run: Run, queue: FairQueue) -> None:
    assert "+fcall" in run("fairque_acl", "--worker")
    assert "eval" not in run("fairque_acl", "--worker", "--producer")
    scripts = run("fairque_acl", "--mode", "scripts")
    assert "+evalsha +eval +script|load" in scripts
    assert "fcall" not in scripts
    assert "deployer" not in scripts
    with pytest.raises(CommandError, match="no spaces"):
        run("fairque_acl", "--name", "a b")


def test_a_deployment_works_with_the_printed_rules(
    run: Run, queue: FairQueue, redis: Redis, settings: Settings, server: Server
) -> None:
    """The steps are those of the documentation: users, passwords, functions, and then a producer."""
    for line in run("fairque_acl").splitlines():
        redis.execute_command(*line.split(), ">secret")
    redis.function_flush("SYNC")
    try:
        as_user(settings, server, "producer")
        with pytest.raises(NotPermittedError, match="fairque_functions"):
            get_queue().push(Task.create("u", 3, None))
        with pytest.raises(CommandError, match=r"FUNCTION LOAD.*fairque_acl"):
            run("fairque_functions")
        as_user(settings, server, "deployer")
        assert "functions are loaded" in run("fairque_functions")
        as_user(settings, server, "producer")
        assert get_queue().push(Task.create("u", 3, None)).status == "accepted"
        as_user(settings, server, "viewer")
        assert "queued 1" in run("fairque_stats")
        with pytest.raises(CommandError, match="does not permit this user to run"):
            run("fairque_user", "pause", "u", "--create")
    finally:
        close_queues()
        redis.acl_deluser(*(f"fairque-{role}" for role in ("producer", "worker", "viewer", "deployer")))


def as_user(settings: Settings, server: Server, role: str) -> None:
    settings.FAIRQUE = {"REDIS": {"URL": server.url, "USERNAME": f"fairque-{role}", "PASSWORD": "secret"}}
