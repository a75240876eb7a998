"""``manage.py fairque_functions``: loads this version's Lua functions into the server, as part of a deployment."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from django_fairque.engine.scripting.operations import drive
from django_fairque.engine.scripting.scripts import delete_unused, functions, names
from django_fairque.engine.transport.retry_policy import CLIENT_ERRORS, translate_error
from django_fairque.engine.transport.server_list import separate_servers
from django_fairque.management.base import PrintingCommand, queues_with_timeout


class Command(PrintingCommand):
    help = (
        "Load the functions of this version into the server, for users who may only call them (fairque_acl). "
        "They do not replace those of other versions; run it before the new version's processes start."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        with queues_with_timeout() as open_queue:
            client: Any = open_queue("default").client
            try:
                for node in [server.client for server in separate_servers(client)] or [client]:
                    node.function_load(functions(), replace=True)
                    drive(delete_unused(node.execute_command))
            except CLIENT_ERRORS as error:
                raise CommandError(str(translate_error(error, "FUNCTION LOAD"))) from error
        self.write_lines(f"{len(names())} functions are loaded")
