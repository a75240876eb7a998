"""A program: a task that may only read tries to write, on PostgreSQL, and what comes of it is printed as JSON.

The middleware, the router and the databases are those of docs/guides/middleware.md.
"""

from __future__ import annotations

import json
import os
import sys
from types import ModuleType
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command

from tests.docs.blocks import DOCS
from tests.docs.examples import examples


def main() -> None:
    module: Any = ModuleType("shop.database")
    sys.modules |= {"shop": ModuleType("shop"), "shop.database": module}
    names = module.__dict__
    *_, databases, code = examples(DOCS / "guides" / "middleware.md", "python")
    exec(databases, names)
    names["DATABASES"]["default"] |= {"NAME": "postgres", "USER": os.environ["PGUSER"]}
    names["DATABASES"]["reports"] |= {"NAME": "postgres"}
    settings.configure(
        SECRET_KEY="role",
        DATABASES=names["DATABASES"],
        DATABASE_ROUTERS=names["DATABASE_ROUTERS"],
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_fairque"],
        FAIRQUE={"REDIS": {"URL": os.environ["TEST_SERVER"]}},
    )
    django.setup()
    exec(code, names)
    json.dump(run(names["ReadOnly"]), sys.stdout)


def run(read_only: Any) -> dict[str, Any]:
    from django.contrib.auth.models import Group
    from django.db import connection

    from django_fairque import Worker, task

    call_command("migrate", verbosity=0)
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE shop_reports LOGIN")
        cursor.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO shop_reports")
    Group.objects.create(name="first")

    @task(name="counts", middleware=[read_only])
    def counts() -> int:
        return int(Group.objects.count())

    @task(name="acounts", middleware=[read_only])
    async def acounts() -> int:
        return int(await Group.objects.acount())

    @task(name="writes", middleware=[read_only], max_retries=0)
    def writes() -> None:
        Group.objects.create(name="second")

    @task(name="other")
    def other() -> int:
        return int(Group.objects.create(name="third").pk)

    results = [function.enqueue() for function in (counts, acounts, writes, other)]
    Worker(burst=True, concurrency=1).run()
    return {
        "counted": [results[0].result(), results[1].result()],
        "refused": results[2].errors[-1].error,
        "written": results[3].state,
        "groups": list(Group.objects.values_list("name", flat=True)),
    }


if __name__ == "__main__":
    main()
