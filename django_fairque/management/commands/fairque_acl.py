"""``manage.py fairque_acl``: the server's access rules for users of the queues."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_fairque.conf import get_config
from django_fairque.engine.model.errors import short
from django_fairque.engine.scripting.acl import ROLES, rules
from django_fairque.management.base import PrintingCommand


class Command(PrintingCommand):
    help = (
        "Print rules of least privilege for the users of the server: ACL SETUSER commands, or lines of an aclfile. "
        "The users have no password, and so can't log in, until you give them one (ACL SETUSER NAME >PASSWORD)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        for name, role in ROLES.items():
            parser.add_argument(f"--{name}", action="append_const", dest="roles", const=name, help=role.about)
        add = parser.add_argument
        mode = (
            "functions (the default): nobody but the deployer can bring code to the server; scripts: everybody "
            "brings their own, for servers without functions"
        )
        add("--mode", choices=("functions", "scripts"), default="functions", help=mode)
        add("--prefix", help="of the keys (default: as configured)")
        add("--name", default="fairque-{role}", help="of the user (default: fairque-{role})")
        add("--cluster", action="store_true", help="with what a cluster's client asks (default: as configured)")
        add("--aclfile", action="store_true", help="lines of a file of users, not commands")

    def handle(self, *args: Any, **options: Any) -> None:
        config = get_config()
        mode = options["mode"]
        usual = [name for name in ROLES if name != "deployer" or mode == "functions"]
        for role in options["roles"] or usual:
            name = _name(options["name"], role)
            words = rules(
                role, mode, options["prefix"] or config.queue.prefix, cluster=options["cluster"] or config.redis.cluster
            )
            start = f"user {name} on" if options["aclfile"] else f"ACL SETUSER {name} on"
            self.write_lines(f"{start} {' '.join(words)}")


def _name(pattern: str, role: str) -> str:
    name = pattern.replace("{role}", role)
    if not name or any(character.isspace() for character in name):
        raise CommandError(f"--name must have no spaces, got {short(pattern)}")
    return name
