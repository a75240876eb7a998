"""A mistake in a command line ends the command with one line and changes nothing."""

from __future__ import annotations

import json
import shlex

import pytest
from django.core.management import CommandError

from tests.fixture_types import FairQueue

from .conftest import Bury, Run

TASK = "library.tasks.analyse_document"
MISTAKES = [
    ("check --queue defualt", "did you mean 'default'"),
    ("user limit acme", "nothing to change"),
    ("user limit acme --rate many", "such as '100/m'"),
    ("user limit acme --burst 5", "--burst belongs to --rate"),
    ("user limit acme --rate 5/m --burst 0", "burst must be an integer from 1"),
    ("user weight acme 0", "from 0.001 to 1000"),
    ("user organization acme ''", "organization must be a non-empty string"),
    ("user pause acme --for 2", "expected an age such as 90s"),
    ("user pause acme --until soon", "--until takes a date and time"),
    ("user pause acme --until 2001-01-01T00:00", "until must be later than now"),
    (f"user pause acme --note {'x' * 201}", "at most 200 characters"),
    ("user list --sort height", "invalid choice: 'height'"),
    ("user list --reverse", "--reverse belongs to --sort"),
    ("organization limit g 0", "max_running must be an integer"),
    ("organization limit g many", "a whole number, or 'none' for no limit, got 'many'"),
    ("organization list --limit 0", "at least 1, got '0'"),
    ("dlq show nothing~1", "has no dead letter"),
    ("dlq list --limit 0", "whole number of at least 1, got '0'"),
    ("dlq list --type dead", "invalid choice: 'dead'"),
    ("dlq list --older-than -1s", "expected (one argument|an age such as 90s)"),
    ("dlq list --fingerprint xyz", "12 hexadecimal digits"),
    ("dlq requeue --all", "no terminal to ask at: give --yes"),
    ("dlq requeue nonsense", "looks like 'task id~1'"),
    ("dlq requeue x~1 --limit 2", "go with --all, as --limit does"),
    ("""dlq requeue --all --yes --payload '{"a":1,"a":2}'""", "'a' occurs twice"),
    ("dlq requeue --all --yes --payload NaN", "--payload must be JSON"),
    (f"dlq requeue --all --yes --payload '{json.dumps('x' * 300_000)}'", "the limit is"),
    ("dlq discard x~1 --all", "name entries, or give --all"),
    ("dlq discard x~1 --user a", "filters go with --all"),
    ("dlq cleanup", "--older-than"),
    ("dlq cleanup --older-than 7", "such as 90s, 10m, 2h or 7d, got '7'"),
    ("dlq cleanup --older-than 99999d", "older_than must be a number of seconds"),
    ("schedule add a --task library.tasks.analyse_documents --every 5", f"did you mean '{TASK}'"),
    (f"schedule add a --task {TASK} --every 5", "missing a required argument"),
    (f"schedule add a --task {TASK} --every 0 --args '[\"a\",1]'", "from 1 to ten years"),
    (f"schedule add a --task {TASK} --cron nightly --args '[\"a\",1]'", "expected five fields"),
    (f"schedule add a --task {TASK} --every 5 --args {{}}", "expected a JSON list, got '{}'"),
    (f"schedule add a --task {TASK} --every 5 --args [", "expected JSON"),
    ("schedule next a -n -1", "expected a whole number of at least 1, got '-1'"),
    ("schedule run nobody", "has no schedule 'nobody'"),
    ("schedule remove nobody", "has no schedule 'nobody'"),
    ("stats --watch 0", "seconds more than 0"),
    ("stats --watch nan", "seconds more than 0"),
    ("stats --watch inf", "at most 86,400"),
    ("stats --watch --count 0", "--count takes a number of at least 1"),
    ("stats --count 2", "goes with --watch"),
    ("stats --top 0", "--top takes a number of at least 1"),
    ("stats --top 3 --user a", "does not go with --user"),
    ("stats --user ''", "user_id must"),
    ("stats --watch --user ''", "user_id must"),
    ("stats --names --user a", "--names does not go with --top and --user"),
    ("stats --names --since 90m", "--since takes whole hours from 1h to 24h, got 1 h 30 min"),
    ("stats --names --since 0h", "--since takes whole hours from 1h to 24h, got 0 s"),
    ("stats --names --since 2d", "--since takes whole hours from 1h to 24h, got 2 d"),
    ("stats --since 1h", "--since belongs to --names, --report or --sla"),
    ("stats --user a --report --since 3d", "--since takes whole hours from 1h to 48h, got 3 d"),
    ("stats --report", "--report goes with --user"),
    ("stats --user a --csv", "--csv goes with --report"),
    ("stats --user a --sla", "--sla does not go with --names, --sizing, --top and --user"),
    ("stats --user a --report --csv --json", "not with --json"),
    ("stats --limit 3", "belong to --names"),
    ("stats --user a --sort name", "belong to --names"),
    ("stats --names --reverse", "--reverse belongs to --sort"),
    ("task list --since yesterday", "expected an age such as 90s"),
    ("task list --limit many", "expected a whole number of at least 1, got 'many'"),
    ("task show nobody", "'nobody'"),
    ("task cancel nobody", "'nobody'"),
    ("task run nobody", "'nobody'"),
    ("task cancel-run nobody", "'nobody'"),
    ("top", "needs a terminal"),
    ("top --interval 0.1", "from 0.5 to 3600"),
    ("top --interval nan", "from 0.5 to 3600"),
    ("top --limit 151", "from 1 to 150"),
]


@pytest.mark.parametrize(("line", "message"), MISTAKES, ids=[line[:60] for line, _ in MISTAKES])
def test_a_mistake_in_a_command_line_is_one_line_of_text_and_changes_nothing(
    queue: FairQueue, run: Run, bury: Bury, line: str, message: str
) -> None:
    bury()
    with pytest.raises(CommandError, match=message) as error:
        run(*shlex.split(f"fairque_{line}"))
    assert "\n" not in str(error.value)
    assert (queue.dlq.counts()["failed"], queue.user("acme").stats().paused) == (1, False)
