"""``manage.py fairque_config``: a template of the configuration's YAML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from django_fairque import conf
from django_fairque.management.base import PrintingCommand

if TYPE_CHECKING:
    from django.core.management.base import CommandParser

EXAMPLE_FILE = Path(conf.__file__).parent / "example.yaml"


class Command(PrintingCommand):
    help = (
        "Print a template of the YAML file of the configuration (CONFIG_FILE): every option with its default and a comment. "
        "It loads as it stands."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--example", action="store_true", required=True, help="print the template")

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(EXAMPLE_FILE.read_text(encoding="utf-8"), ending="")
