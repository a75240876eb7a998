"""The pages of docs/guides: each block is typed into the file that its first line names, and what is sent is run."""

from __future__ import annotations

import re
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import django
import pytest
import structlog
from django.contrib.auth.models import User
from django.db import router
from django.http import Http404
from django.utils import translation

from django_fairque import Priority, Task, signals, task
from django_fairque.backends.options import BackendOptions
from django_fairque.conf import get_config, get_queue
from django_fairque.engine.statistics.health import Alert
from django_fairque.events import activation, field_tracker, rules
from django_fairque.middleware import own_callable
from django_fairque.monitoring.monitor import StatsMonitor
from django_fairque.tasks.schedules import sync_schedules
from django_fairque.tasks.transactions import after_commit
from django_fairque.testing import run_tasks
from tests.docs import blocks
from tests.docs.examples import command_lines, examples
from tests.shop.models import Customer, Order, Tag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.test import RequestFactory
    from pytest_django import Settings

    from django_fairque.engine.queue.queue import FairQueue

GUIDES = blocks.DOCS / "guides"
PAGES = {page.relative_to(GUIDES).as_posix(): page for page in sorted(GUIDES.rglob("*.md"))} | {
    f"{name}.md": blocks.DOCS / f"{name}.md" for name in ("index", "quickstart", "concepts")
}
FILE = re.compile(r"# (?P<path>[\w/]+)\.py(?: .*)?")
SHELL = "# python manage.py shell"

TESTED_ELSEWHERE = {"testing.md"}
"""By tests/testing/test_docs.py."""

pytestmark = pytest.mark.django_db(transaction=True)


class Project:
    """The reader's project. Blocks of one file are parts of it; the settings have the server of the tests from the start."""

    def __init__(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        self._settings, self._monkeypatch = settings, monkeypatch
        self._server = settings.FAIRQUE["REDIS"]
        self.shell: dict[str, Any] = {"__name__": "shell"}
        self._module("shop")
        self._module("shop.settings").__dict__.update(
            FAIRQUE={"REDIS": self._server},
            INSTALLED_APPS=[],
            MIDDLEWARE=[],
            TASKS={"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}},
        )

    def read(self, page: str) -> dict[str, Any]:
        """Type the blocks of a page, one after the other. Returns the names of the shell."""
        for example in blocks.examples(PAGES[page]):
            if example.reason is None:
                self._type(example)
        return self.shell

    def _type(self, example: blocks.Example) -> None:
        first = example.code.partition("\n")[0]
        if first == SHELL:
            return example.run(self.shell)
        named = FILE.fullmatch(first)
        assert named, f"{example.place}: the first line must name a file, or be {SHELL!r}"
        module = self._module(named["path"].replace("/", "."))
        if module.__name__ == "shop.settings":
            example.run(module.__dict__)
            if "TASKS" in example.code:
                self._settings.TASKS = module.__dict__["TASKS"]
            return self._configure(module.__dict__["FAIRQUE"])
        before = sent()
        example.run(module.__dict__)
        assert sent() == before, f"{example.place}: importing this enqueues"
        return None

    def _module(self, name: str) -> ModuleType:
        if name not in sys.modules or getattr(sys.modules[name], "__file__", None):
            self._monkeypatch.setitem(sys.modules, name, ModuleType(name))
        return sys.modules[name]

    def _configure(self, theirs: dict[str, Any]) -> None:
        """Their settings must be right; afterwards they count, on the server of the tests."""
        self._settings.FAIRQUE = theirs
        get_config()
        self._settings.FAIRQUE = {**theirs, "REDIS": self._server}


@pytest.fixture
def project(queue: FairQueue, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(settings, monkeypatch)


def sent() -> dict[str, dict[str, int]]:
    """Return for each queue how many tasks are in each state."""
    return {name: states(name) for name in get_config().queues}


def states(name: str = "default") -> dict[str, int]:
    return {str(state): count for state, count in get_queue(name).get_stats().states.items() if count}


def drain(*names: str) -> None:
    while run_tasks(*names):
        pass


def test_the_examples_of_retries_and_errors_end_in_the_described_states(project: Project) -> None:
    names = project.read("retries-and-errors.md")
    drain()
    found = {name: names[name].state for name in ("good", "wrong", "busy", "lost")}
    assert found == {"good": "finished", "wrong": "failed", "busy": "scheduled", "lost": "canceled"}
    task = names["busy"].refresh().task
    assert 100 < task.execute_after - task.created_at < 180
    sys.modules["shop.operations"].requeue_newest_group()
    assert names["wrong"].state == "queued"


def test_the_examples_of_tasks_work_as_described(project: Project, rf: RequestFactory) -> None:
    names = project.read("tasks.md")
    shop = sys.modules
    assert shop["shop.settings"].MIDDLEWARE == ["django_fairque.middleware.CurrentUserMiddleware"]
    found = own_callable(shop["shop.settings"].FAIRQUE["REQUEST_USER"])
    assert found(rf.get("/", headers={"x-tenant": "acme"})) == "acme"
    assert found(rf.get("/")) is None
    assert names["here"] == {"sent": 45}
    shop["shop.greetings"].welcome_all(["acme", "globex"])
    drain()
    assert names["result"].result() == {"sent": 42}
    assert names["total"].result() == Decimal("9.90")
    assert names["good"].result() == 1
    assert "nothing to index" in names["bad"].errors[0].error
    assert names["later"].state == "scheduled"
    welcomes = {
        task.result for task in get_queue().tasks("finished", limit=1000).items if task.name.endswith(".welcome")
    }
    assert welcomes == {"welcome, acme", "welcome, globex"}
    assert states()["finished"] == 1 + 1 + 100 + 1 + 1 + 2


def test_the_examples_of_pipelines_work_as_described(project: Project) -> None:
    names = project.read("pipelines.md")
    drain()
    assert names["later"].state == "running"  # the object keeps the state that it was read with
    assert get_queue().run(names["run_id"]).state == "finished"
    assert names["run"].results[-1].result() == len("eu" + "us" + "asia")
    assert names["counted"].results[-1].result() == "17 rows"
    assert names["published"].wait(0) == "finished"
    assert names["second"].result() == len("eu")
    assert states() == {"finished": 4 + 2 + 3 + 1 + 4 + 2}


def test_the_examples_of_schedules_work_as_described(project: Project) -> None:
    names = project.read("schedules.md")
    assert names["reminder"].state == "canceled"
    queue = get_queue()
    assert [schedule.name for schedule in queue.schedules.list()] == ["weekly-acme"]
    sync_schedules()
    names_of_schedules = ["import-prices", "ping", "rebuild-index", "reports", "weekly-acme"]
    assert [schedule.name for schedule in queue.schedules.list()] == names_of_schedules
    delays = [queue.get_task(result.id).delay for result in names["spread"]]
    assert delays == [None, 1200, 2400]
    begin = queue.schedules.get("rebuild-index").start
    for minute in (1, 2, 3):
        queue.schedules.fire_due(now=begin + 60 * minute + 1)
    found = {name: [run.happened for run in queue.schedules.get(name).runs] for name in names_of_schedules}
    assert found["ping"] == ["enqueued"] * 3
    assert found["import-prices"] == ["skipped", "enqueued"]
    assert found["rebuild-index"] == ["skipped", "enqueued", "enqueued"]
    queue.schedules.run_now("weekly-acme")
    drain()
    assert states() == {"canceled": 1, "finished": 8, "scheduled": 2}


def test_the_examples_of_priorities_and_limits_work_as_described(project: Project) -> None:
    names = project.read("priorities-and-limits.md")
    assert sys.modules["shop.settings"].FAIRQUE["QUEUE"]["SLA"] == {"CRITICAL": 30, "NORMAL": 600}
    stats = get_queue().user("acme").stats()
    assert (stats.plan, stats.weight, stats.max_running, stats.max_backlog) == ("pro", 3, 20, 100_000)
    assert stats.explicit == ()
    assert (stats.sizes.critical, stats.sizes.normal) == (1, 2)  # normal: each that is not critical
    bob = get_queue().user("bob").stats()
    assert (bob.plan, bob.max_running, bob.rate) == ("free", 2, "60/60s")
    assert names["answer"].startswith("Too much at once: 200")
    assert get_queue().user("bob").stats().sizes.total == 1_000
    sys.modules["shop.organizations"].join(("peter", "milton"), "initech")
    assert get_queue().organization("initech").stats().members == 2
    first = get_queue().pop("w", users=["acme"])
    assert first is not None
    assert first.name == "shop.tasks.send_code"


def test_the_examples_of_lanes_work_as_described(project: Project) -> None:
    project.read("lanes.md")
    lanes = [lease.lane for lease in get_queue().pop_batch(10, "w")]
    assert lanes == ["urgent", "bulk", "bulk", "bulk"]
    assert sys.modules["shop.settings"].FAIRQUE["QUEUE"]["LANES"]["URGENT_PRIORITY"] == "CRITICAL"


def test_the_examples_of_limits_work_as_described(project: Project) -> None:
    names = project.read("limits.md")
    states = [get_queue().get_task(result.id).state.value for result in names["results"]]
    assert states == ["canceled", "canceled", "queued"]
    leases = get_queue().pop_batch(100, "w")
    assert Counter((lease.name.rpartition(".")[2], lease.user_id) for lease in leases) == {
        ("fetch_mail", "acme"): 2,
        ("rebuild", "acme"): 1,
        ("export", "acme"): 5,
        ("export", "bob"): 1,
    }
    assert names["limit"].stats().key == "payments"
    (typed,) = {result.id for result in names["typed"]}
    assert get_queue().get_task(typed).state.value == "scheduled"  # until the text has not changed for two seconds
    assert sys.modules["shop.suggestions"].suggest("acme", "box-7") == "results for berlin"
    options = BackendOptions(sys.modules["shop.settings"].TASKS["default"]["OPTIONS"])
    assert options.problems == []
    assert options.get_options("newsletter.tasks.send").options.limits[0].key == "smtp"


@pytest.mark.parametrize(("status", "closes"), [(429, True), (500, False)])
def test_the_recipe_of_a_quota_closes_the_limit_after_http_429(
    project: Project, monkeypatch: pytest.MonkeyPatch, status: int, closes: bool
) -> None:
    project.read("noisy-neighbors/quota.md")
    payments = sys.modules["shop.payments"]

    def refuse(url: str, **_: Any) -> None:
        raise HTTPError(url, status, "", Message(), None)

    monkeypatch.setattr(payments, "urlopen", refuse)
    result = payments.charge.using(max_retries=0).enqueue("acme", "https://api.example.com")
    drain()
    assert get_queue().limit("payments").stats().is_closed is closes
    assert result.state == ("scheduled" if closes else "failed")


def test_the_examples_of_transactions_work_as_described(project: Project) -> None:
    names = project.read("transactions.md")
    assert names["receipt"].state == "queued"
    with pytest.raises(ValueError, match="out of stock"):
        sys.modules["shop.orders"].place_order("acme", 2, in_stock=False)
    drain()
    assert sys.modules["shop.tasks"].sent == [1]
    assert states() == {"finished": 1}


@pytest.fixture
def no_events(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Model events that the page declares are gone when the test ends."""
    monkeypatch.setattr(rules, "rule_registry", rules._RuleRegistry())
    monkeypatch.setattr(field_tracker, "tracked", {})
    activation.ready()
    yield
    after_commit._unsent_counts.take()


def test_the_examples_of_model_events_work_as_described(project: Project, queue: FairQueue, no_events: None) -> None:
    project.read("model-events.md")
    assert [rule.problems for rule in rules.rules()] == [[]] * 7
    order = Order.objects.create(customer=Customer.objects.create(slug="acme"), total=200)
    order.status = "paid"
    order.save()
    order.tags.add(Tag.objects.create())
    pk = order.pk
    order.delete()
    due = [(task.name, task.payload["args"]) for task in queue.tasks("scheduled").items]
    assert due == [("shop.tasks.update_index", [pk, "paid"])]
    done = {(lease.name, lease.user_id, *lease.payload["args"]) for lease in queue.pop_batch(20, "w")}
    assert done == {
        ("shop.events.analyse", "acme", pk),
        ("shop.tasks.send_receipt", str(order.customer_id), order.customer_id, pk),
        ("shop.tasks.update_index", "default", pk, 200),
        ("shop.tasks.update_index", "default", pk, "changed"),
        ("shop.tasks.greet", "default", "acme"),
        ("shop.tasks.update_index", "default", pk, "delete"),
    }


def test_the_examples_of_django_tasks_work_as_described(project: Project, settings: Settings) -> None:
    names = project.read("django-tasks.md")
    options = BackendOptions(settings.TASKS["default"]["OPTIONS"])
    assert (options.problems, options.get_options("shop.tasks.report").options.max_retries) == ([], 4)
    result = names["result"]
    assert get_queue("mail").get_task(result.id).user_id == "acme"
    assert get_queue("mail").get_task(result.id).max_retries == 3
    assert names["same"].id == result.id
    assert states() == {"scheduled": 1}
    drain("mail")
    result.refresh()
    assert result.return_value == {"sent": 42}


def test_the_examples_of_middleware_work_as_described(
    project: Project, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    """The role of the database: tests/third_party/test_database_role.py."""
    project.read("middleware.md")
    shop = sys.modules
    for name in ("Language", "FastLanguage"):
        settings.FAIRQUE = {**settings.FAIRQUE, "MIDDLEWARE": [f"shop.middleware.{name}"]}
        with translation.override("ja"):
            of_setting = task(name=name)(translation.get_language).enqueue()
            of_task = shop["shop.tasks"].greet.enqueue("acme")
        drain()
        assert (of_setting.result(), of_task.result()) == ("ja", "はい")

    def used() -> list[str]:
        return [router.db_for_read(User), router.db_for_write(User)]

    settings.DATABASE_ROUTERS = shop["shop.settings"].DATABASE_ROUTERS
    read_only = task(middleware=[shop["shop.database"].ReadOnly], name="read_only")(used).enqueue()
    timed = task(middleware=[shop["shop.slow"].LogSlow(0.0)], name="timed")(used).enqueue()
    drain()
    assert read_only.result() == ["reports", "reports"]
    assert timed.result() == ["default", "default"]
    assert "timed for default took 0.0 s, attempt 1" in caplog.text


def test_the_settings_for_wagtail_and_django_tenants_are_valid(project: Project, settings: Settings) -> None:
    """The settings for Wagtail are right. tests/third_party runs both packages with the code of the page."""
    project.read("wagtail-and-django-tenants.md")
    given = BackendOptions(settings.TASKS["default"]["OPTIONS"])
    assert given.problems == []
    found = given.get_options("modelsearch.tasks.insert_or_update_object_task")
    assert (found.options.debounce, found.options.max_retries, found.queue, found.priority) == (2, 3, "index", -50)


def test_the_recipes_work_as_described(project: Project, settings: Settings) -> None:
    settings.STORAGES = {**settings.STORAGES, "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"}}
    names = project.read("recipes.md")
    shop = sys.modules
    shop["shop.tasks"].send_all_reports.enqueue()
    drain()
    assert names["imported"].state == "finished"
    assert list(shop["shop.imports"].stored) == ["a-1", "a-2"]
    assert get_queue().dlq.groups().groups[0].error.endswith("no article number")
    assert names["first"].id == names["second"].id == "charge-7"
    assert list(shop["shop.payments"].booked) == ["charge-7"]
    assert names["counts"][0].id == names["counts"][1].id
    assert names["lines"].result() == 2
    ended = get_queue().tasks("finished", limit=1000).items
    assert sorted(task.result for task in ended if task.name.endswith(".export")) == [100, 200, 250]
    assert len([task for task in ended if task.name.endswith(".send_report")]) == 3
    assert states() == {"finished": 1 + 2 + 1 + 3 + 1 + 1 + 1 + 3, "failed": 1}


def test_the_examples_of_workers_run(project: Project) -> None:
    project.read("workers.md")
    sys.modules["shop.consumer"].run_all()


def test_the_example_of_an_own_admin_site_has_the_pages(project: Project) -> None:
    project.read("admin.md")
    registered = {model.__name__ for model in sys.modules["shop.backoffice"].backoffice._registry}
    assert registered == {"Queue", "OutboxEntry"}


def test_the_recipes_with_lanes_and_users_work_as_described(project: Project) -> None:
    project.read("noisy-neighbors/digest.md")
    project.read("noisy-neighbors/import.md")
    project.read("noisy-neighbors/accounts.md")
    project.read("noisy-neighbors/sizes.md")
    shop = sys.modules
    shop["shop.digests"].send_all(["ann", "bob"])
    shop["shop.digests"].send_password_mail.enqueue("bob")
    shop["shop.rows"].import_all("carol", [1, 2])
    shop["shop.accounts"].join("carol", "big")
    shop["shop.customers"].add_customer("huge", ["dan", "eve"], 10)
    assert [lease.lane for lease in get_queue().pop_batch(10, "w")] == ["urgent", "normal", "normal", "bulk", "bulk"]
    assert get_queue().organization("big").stats().members == 1
    huge = get_queue().organization("huge").stats()
    assert (huge.members, huge.weight) == (2, 10)


def test_the_recipe_of_webhooks_joins_events_and_refuses_too_many(project: Project, rf: RequestFactory) -> None:
    project.read("noisy-neighbors/webhooks.md")

    def receive(order: int) -> int:
        request = rf.post("/", {"order": order}, content_type="application/json")
        return int(sys.modules["shop.webhooks"].receive(request, "acme").status_code)

    assert [receive(order) for order in (1, 1, 2)] == [202] * 3
    assert states() == {"scheduled": 2}
    get_queue().user("acme").set_max_backlog(2)
    assert receive(3) == 503


def test_the_recipe_of_failing_tasks_stops_only_one_customer(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.read("noisy-neighbors/failing-tasks.md")
    deliveries = sys.modules["shop.deliveries"]

    def hang(request: Any, **_: Any) -> None:
        raise TimeoutError("no answer")

    monkeypatch.setattr(deliveries, "urlopen", hang)
    first, second = (deliveries.deliver.enqueue("broken", "https://example.com", "{}") for _ in range(2))
    drain()
    limit = get_queue().limit("hooks:broken", "broken").stats()
    assert (limit.is_closed, first.state, second.state) == (True, "scheduled", "queued")


def test_the_recipe_of_plans_gives_customers_their_limits(project: Project) -> None:
    project.read("noisy-neighbors/plans.md")
    for customer in ("acme", "bob"):
        task(user="customer", name="work")(lambda customer: None).enqueue(customer)
    found = [get_queue().user(customer).stats() for customer in ("acme", "bob")]
    assert [(stats.plan, stats.weight, stats.max_running) for stats in found] == [("pro", 3, 20), ("free", 1, 2)]


def test_the_recipe_of_tokens_closes_the_limit_of_a_customer_without_a_budget(project: Project) -> None:
    project.read("noisy-neighbors/tokens.md")
    answer = sys.modules["shop.llm"].answer
    (small,) = results = [answer.enqueue("small", "a question")]
    results += [answer.enqueue("large", "long " * 3_000) for _ in range(4)]
    drain()
    assert small.result() == "answer to a question"
    assert get_queue().limit("tokens:large", "large").stats().is_closed
    assert sorted(result.state for result in results if result.state) == [
        "finished",
        "finished",
        "finished",
        "queued",
        "queued",
    ]


def test_the_recipe_of_progress_reports_it_to_the_page(project: Project, rf: RequestFactory) -> None:
    project.read("noisy-neighbors/progress.md")
    films = sys.modules["shop.films"]
    film = films.render.enqueue("acme", "holidays")
    assert films.progress(rf.get("/"), film.id).content == b'{"state": "queued", "done": 0, "of": 5}'
    drain()
    assert film.result() == "holidays"
    assert films.progress(rf.get("/"), film.id).content == b'{"state": "finished", "done": 5, "of": 5}'
    with pytest.raises(Http404):
        films.progress(rf.get("/"), "no-such-task")


def test_the_examples_of_servers_run(project: Project) -> None:
    project.read("servers.md")


def test_the_examples_of_monitoring_work_as_described(
    project: Project, mailoutbox: list[Any], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}  # read by Django 6.1
    settings.ADMINS = ["on-duty@example.com"] if django.VERSION >= (6, 0) else [("On duty", "on-duty@example.com")]
    monkeypatch.setenv("ALERT_WEBHOOK", "https://hooks.example.com/services/1")
    monkeypatch.setenv("METRICS_TOKEN", "0123456789abcdef")
    project.read("monitoring.md")
    alerts = sys.modules["shop.alerts"]
    task = Task.create("acme", 3, None)
    try:
        signals.task_dead.send(sender="shop.work", task=task, queue="default", error="no")
        signals.data_lost.send(sender="default", alert=Alert("emptied", 0.0, "default", "", "", "", Priority.NORMAL))
    finally:
        signals.task_dead.disconnect(alerts.report_dead_letter)
        for signal in (signals.sla_violated, signals.data_lost):
            signal.disconnect(alerts.report_alert)
    assert alerts.messages[0] == "shop.work of acme is a dead letter: no"
    assert len(alerts.messages) == 2
    found = get_config().monitor
    assert {rule.metric for rule in StatsMonitor(get_queue()).rules} == {
        *("oldest_wait", "dead", "failure_share", "idle_backlog"),
    }
    assert found.webhook is not None
    assert (found.webhook.url.get_secret_value(), found.webhook.format) == (
        "https://hooks.example.com/services/1",
        "slack",
    )
    assert [token.get_secret_value() for token in found.token] == ["0123456789abcdef"]
    monitor = sys.modules["shop.monitor"].make_monitor()
    assert [rule.metric for rule in monitor.rules] == ["oldest_wait", "failure_share"]
    waiting = replace(get_queue().get_stats(), oldest_wait_seconds=700.0)
    for now in (0, 60):
        monitor.check(waiting, now=now)
    assert [mail.to for mail in mailoutbox] == [["on-duty@example.com"]]


def test_the_examples_of_observability_work_as_described(project: Project) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        names = project.read("observability.md")
        drain()
    found = [
        (line["event"], line["number"], line["request_id"], line["task_id"]) for line in lines if "request_id" in line
    ]
    assert found == [("sending", 42, "9359dc35", names["result"].id)]
    assert get_config().tracing


def test_the_example_of_a_renamed_task_keeps_its_name(project: Project) -> None:
    project.read("upgrading.md")
    assert sys.modules["shop.mail"].send_receipt.name == "shop.tasks.send"


def test_the_example_of_scaling_sets_the_number_of_shards(project: Project) -> None:
    project.read("scaling.md")
    assert get_config().queue.shards == 12


def test_the_example_of_troubleshooting_finds_the_reasons_of_a_wait(project: Project) -> None:
    names = project.read("troubleshooting.md")
    assert names["kinds"] == ["user_paused", "no_worker"]


def test_the_examples_for_users_of_celery_work_as_described(project: Project) -> None:
    names = project.read("from-celery.md")
    sys.modules["shop.tests"].test_the_mail_is_tried_three_times()
    sent_by_the_old_task = sys.modules["shop.old_tasks"].fetch_task("acme", 7)
    drain()
    assert names["run"].results[-1].result() == 60
    assert get_queue().get_task(sent_by_the_old_task).result == 70
    callbacks = sys.modules["shop.callbacks"]
    stored, unneeded = callbacks.load_and_store("acme", 1)
    canceled, report = callbacks.load_and_store("acme", -1)
    chain = (callbacks.load.s("acme", 2) >> callbacks.store.s("acme", "box")).enqueue()
    drain()
    assert (stored.result(), unneeded.result(), chain.results[-1].result()) == ("box: 10", None, "box: 20")
    assert (canceled.state, report.result()) == ("canceled", "ValueError: no such page")
    with contextmanager(sys.modules["shop.conftest"].tasks_run_at_once.__wrapped__)() as ran:
        assert callbacks.load.enqueue("acme", -1).state == "failed"
        assert callbacks.load.enqueue("acme", 3).result() == 30
    assert len(ran) == 2


@pytest.mark.django_db(transaction=True)
def test_the_decorator_for_users_of_celery_changes_an_argument(project: Project) -> None:
    project.read("from-celery.md")
    ann = User.objects.create(username="ann")
    reminded = sys.modules["shop.reminders"].remind.enqueue(ann.pk, text="pay")
    drain()
    assert (reminded.task.user_id, reminded.result()) == (str(ann.pk), "ann: pay")


def test_the_examples_for_users_of_huey_work_as_described(project: Project) -> None:
    project.read("from-huey.md")
    stored, report = sys.modules["shop.pipeline"].fetch_and_store("acme", 7)
    drain()
    assert stored.result().startswith("box has page 7 of acme, by ")
    assert report.result() == "no error"
    sync_schedules()
    queue = get_queue()
    queue.schedules.run_now("clean-up")
    assert [lease.name for lease in queue.pop_batch(2, "w")] == ["shop.tasks.clean_up"]


def test_the_examples_for_users_of_other_queues_work_as_described(project: Project) -> None:
    project.read("from-other-queues.md")
    assert sys.modules["shop.jobs"].report_job("acme", "may") == {"pages": 3}
    pickled = sys.modules["shop.pickled"].enqueue("acme", max, {3, 7})
    drain()
    assert pickled.result() == 7
    assert states("high") == {"queued": 1, "scheduled": 1}
    drain("high")
    assert states("high") == {"finished": 1, "scheduled": 1}
    options = sys.modules["shop.settings"].TASKS["fair"]["OPTIONS"]
    assert options == {"USER": "shop.users.user_of", "MAX_RETRIES": 3}


def test_the_settings_of_the_production_checklists_are_valid(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The providers' servers are not asked: the configuration must be right."""
    monkeypatch.setenv("REDIS_URL", "rediss://:secret@queues.example.com:6379")
    monkeypatch.setenv("VALKEY_PASSWORD", "secret")
    project.read("production-checklists.md")
    silenced = sys.modules["shop.settings"].SILENCED_SYSTEM_CHECKS
    assert silenced == ["fairque.W004", "fairque.E009", "fairque.E008"]


def test_pages_name_no_test_file() -> None:
    for name, page in PAGES.items():
        assert re.findall(r"\btests/|\btest_\w+\.py\b", page.read_text()) == [], name
        blocks_of_text = examples(page, "toml", "text") if GUIDES in page.parents else []
        assert [block for block in blocks_of_text if not block.startswith("# ")] == [], name


def test_the_commands_of_pages_exist() -> None:
    from django.core.management import get_commands, load_command_class

    for page in [*PAGES.values(), blocks.DOCS / "tutorial.md"]:
        for name, *arguments in command_lines(page):
            if name.startswith("fairque_"):
                command = load_command_class(get_commands()[name], name)
                command.create_parser("manage.py", name).parse_args(arguments)


def test_the_example_of_the_home_page_works(project: Project) -> None:
    project.read("index.md")
    sys.modules["shop.views"].pay(None)
    drain()
    assert states() == {"finished": 1}


def test_every_page_with_examples_has_a_test() -> None:
    tested = set(re.findall(r'project\.read\("([\w/-]+\.md)"\)', Path(__file__).read_text()))
    with_examples = {name for name, page in PAGES.items() if GUIDES in page.parents and blocks.examples(page)}
    assert with_examples - tested - TESTED_ELSEWHERE == set()
