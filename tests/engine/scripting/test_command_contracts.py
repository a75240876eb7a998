"""Each command keeps to the form of its contract, and names keys as Python does."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from redis import Redis

from django_fairque.engine.model.options import QueueConfig
from django_fairque.engine.queue.queue import FairQueue
from django_fairque.engine.scripting import scripts
from django_fairque.engine.scripting.commands import Commands, Keys
from django_fairque.engine.scripting.scripts import BASE_KEYS
from tests.engine.conftest import NOW, task
from tests.engine.leasing.test_fairness import HOSTILE

LUA = files("django_fairque.engine") / "lua"
COMMANDS = {name: (LUA / "commands" / f"{name}.lua").read_text().splitlines() for name in scripts.names()}
OTHERS = {"reply", "workers", "worker", "leases", "revoked", "xcom", "schedules", "schedules:due", "schedules:last"}
OTHERS |= {"events", "shards", "schedules:versions", "schedules:workers", "schedules:retired", "schedules:runs"}
OTHERS |= {"incidents", "incidents:open", "workers:lost"}


def test_commands_begin_with_their_contract() -> None:
    for name, lines in COMMANDS.items():
        assert re.fullmatch(r"#!lua( flags=[a-z-]+)?", lines[0]), name
        assert re.match(r"-- [A-Z].*[.:]$|-- [A-Z]", lines[1]), name
        header = "\n".join(line for line in lines if line.startswith("--"))
        for part in ("KEYS", "ARGV", "REPLY", "COST"):
            assert re.search(rf"^-- {part} ", header, re.MULTILINE), f"{name}.lua has no {part}"
        assert set(scripts.load(name).keys) <= {*BASE_KEYS, *OTHERS}, name


def test_a_full_server_refuses_only_commands_that_add_data() -> None:
    refused = {name for name, lines in COMMANDS.items() if "allow-oom" not in lines[0]}
    assert refused == {"push", "deliver", "requeue", "progress", "xcom", "schedule", "fire", "set_shard_count"}


def test_no_script_calls_a_forbidden_command() -> None:
    for name in COMMANDS:
        source = re.sub(r"--.*", "", scripts.load(name).source)
        assert source.count("pcall") == 1, name  # in `attempt`, which makes one call and reads its error at once
        for banned in ("xpcall", "cjson", "cmsgpack", "'KEYS'", "'SCAN'", "tostring(counters.shard", "os.clock"):
            assert banned not in source, name


def test_the_server_can_load_the_function_library(redis: Redis) -> None:
    """One that can't be is noticed by nobody: its commands run as scripts then, at twice the time. Lua allows 200 local names
    at once."""
    redis.function_load(scripts.functions(), replace=True)


def test_lua_knows_each_option_that_python_sends() -> None:
    (_, sent), known = (
        Commands("default", QueueConfig()).call("pause", [], None).args,
        (LUA / "lib" / "options.lua").read_text(),
    )
    for option in str(sent).split():
        name, value = option.split("=")
        assert value
        assert re.search(rf"\b{name.partition(':')[0]}\b", known), name


@pytest.mark.parametrize("user", HOSTILE)
def test_lua_and_python_give_keys_the_same_names(queue: FairQueue, redis: Redis, user: str) -> None:
    task_id = f"t{user[:60]}"
    queue.push(task(user, task_id=task_id, unique_key="k", unique_for=9), now=NOW)
    queue.push(task(user, 6, task_id="c"), now=NOW)
    queue.push(task(user, execute_after=NOW + 9), now=NOW)
    keys = Keys("fq", "default")
    expected = {keys.task(task_id), keys.payload(task_id), keys.user(user), keys.normal(user), keys.critical(user)}
    expected |= {
        keys(f"queue:user:{user}:scheduled"),
        keys(f"unique:{len(user.encode())}:{user}:k"),
        keys.minute(int(NOW // 60)),
    }
    found = {key.decode() for key in redis.scan_iter()}
    queue.pop("w:1", [user], now=NOW)
    queue.cancel(task_id, now=NOW)
    found |= {key.decode() for key in redis.scan_iter()}
    assert expected | {keys.leases("w:1"), keys.history(task_id)} <= found
    assert {key.split("}:")[0] for key in found} == {"fq:{default:0"}


def test_the_readme_names_every_key_and_command() -> None:
    text = (LUA / "README.md").read_text()
    for name in (*BASE_KEYS, *OTHERS, *scripts.names()):
        assert name in text, f"lua/README.md says nothing of {name}"
