"""Acts on many tasks, which workers carry out: their progress and result; operators go on with them, stop and undo them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_fairque.admin.pages.base import Action, AdminPage
from django_fairque.engine.acts.acts import UNDONE_FROM, ActKind, TaskAct
from django_fairque.monitoring.redaction import redacted_text

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

PERMISSIONS: dict[ActKind, str] = {
    "retry": "change_deadletter",
    "discard": "delete_deadletter",
    "cancel": "change_task",
}
"""The permission to start an act of each kind, and to stop or undo it."""
COUNTS: dict[str, StrOrPromise] = {
    "done": gettext_lazy("changed"),
    "succeeded": gettext_lazy("succeeded"),
    "failed_again": gettext_lazy("failed again"),
    "same_error": gettext_lazy("of them with the same error"),
    "pending": gettext_lazy("not ended yet"),
    "skipped": gettext_lazy("skipped"),
    "restored": gettext_lazy("restored"),
    "kept": gettext_lazy("left as they are, because they have changed since"),
}
"""The counts of an act that are shown if they are not 0."""


class ActsPage(AdminPage):
    """The acts of the last 24 hours, the latest first. Each button needs the permission of the act itself."""

    name = "acts"
    title = gettext_lazy("Acts")
    permission = "view_deadletter"

    def template_context(self) -> dict[str, Any]:
        return {
            "rows": [
                {
                    "act": act,
                    "note": redacted_text(act.note),
                    "counts": [(label, getattr(act, name)) for name, label in COUNTS.items() if getattr(act, name)],
                    "can_go_on": act.state in ("trial", "stopped"),
                    "can_stop": act.state in ("trial", "running"),
                    "can_undo": act.state in UNDONE_FROM,
                    "may_change": self.may(PERMISSIONS[act.kind]),
                }
                for act in self.queue.acts.list()
            ]
        }

    def _change(self, change: Callable[[str], TaskAct], done: str, question: str = "") -> str:
        """Change the posted act, if the operator may start such an act. Return the sentence to show."""
        act = self.queue.acts.get(self.request.POST.get("act", ""))
        if not self.may(PERMISSIONS[act.kind]):
            raise PermissionDenied
        if question:
            self.ask_first(question, _("Yes, undo it"))
        change(act.id)
        return done % {"act": act.id}

    @Action("view_deadletter")
    def go_on(self) -> str:
        return self._change(self.queue.acts.go_on, _("Act %(act)s goes on"))

    @Action("view_deadletter")
    def stop(self) -> str:
        return self._change(self.queue.acts.stop, _("Act %(act)s is stopped"))

    @Action("view_deadletter")
    def undo(self) -> str:
        question = _(
            "Tasks that nothing has changed since are restored. Tasks that depended on them and were canceled stay canceled."
        )
        return self._change(self.queue.acts.undo, _("Act %(act)s is being undone"), question)
