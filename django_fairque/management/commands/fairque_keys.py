"""``manage.py fairque_keys``: shows the keys with which producers sign tasks."""

from __future__ import annotations

from collections.abc import Iterator

from django_fairque.engine.model.signature import fingerprint
from django_fairque.engine.queue.used_keys import replace_used_keys, used_keys
from django_fairque.management.base import Parser, QueueCommand
from django_fairque.tasks.signing import project_keys


class Command(QueueCommand):
    help = (
        "List the fingerprints of the keys with which producers have signed tasks of a queue, or replace them. A fingerprint "
        "does not reveal its key. A worker without one of these keys gives back tasks whose signatures it can't check. If it "
        "has all of them, a wrong signature is a forgery, and its task becomes a dead letter."
    )

    def add_arguments(self, parser: Parser) -> None:
        super().add_arguments(parser)
        add = self.add_actions(parser)
        add("list", "list the fingerprints, and which of them are those of this project's keys")
        add(
            "replace",
            "let SECRET_KEY be the only key of the producers: run it when no producer uses another one any more, before you "
            "remove an old key from SECRET_KEY_FALLBACKS, or when somebody else has written to the server",
        )

    def _list(self) -> Iterator[str]:
        own = {fingerprint(key): "SECRET_KEY_FALLBACKS" for key in project_keys()[1:]}
        own[fingerprint(project_keys()[0])] = "SECRET_KEY"
        used = used_keys(self.queue)
        for key in sorted(used):
            yield f"{key}  {own.get(key, 'none of this project')}"
        if not used:
            yield f"no producer has pushed to queue {self.queue.name!r} with a key"

    def _replace(self) -> Iterator[str]:
        key = fingerprint(project_keys()[0])
        replace_used_keys(self.queue, [key])
        yield f"the only key of the producers of queue {self.queue.name!r} is {key} now, that of SECRET_KEY"
