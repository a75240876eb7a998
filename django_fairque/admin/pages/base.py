"""What all pages share: who may see and do what, which queue, a server that is down, the audit trail, fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.utils.translation import gettext as _
from django.views import View

from django_fairque.admin.page_queues import page_queue, queue_names
from django_fairque.engine.model.errors import (
    ConfigurationError,
    FairQueueError,
    RedisConnectionError,
    ShardsAwayError,
    TaskNotFoundError,
    TaskValidationError,
)
from django_fairque.models import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue

APP = "django_fairque"
FRAGMENT_HEADER = "X-Fairque-Fragment"
"""Sent by the script that refreshes a page: only what changes is wanted."""
MOST_OF_SUBJECT = 200
"""Characters that the admin's log has for what something was done to."""


@dataclass(frozen=True)
class Action:
    """Something that a page does: a POST with ``action`` set to its name.

    ``method`` is given the queue and the request; it returns the sentence that is shown (and logged), and raises a
    `FairQueueError` or `ValueError` whose text is shown instead. ``subject`` says what it was done to, for the audit trail.
    """

    permission: str
    method: Callable[[Any, FairQueue, HttpRequest], str]
    subject: Callable[[Any, HttpRequest], str] = lambda page, request: request.POST.get("subject", "")  # noqa: ARG005


class NotHereError(Exception):
    """What the address asks for is not there (any more); raised by `Page.facts`, with a sentence for whoever asked."""


class Page(View):
    """One page of one queue. Subclasses set the class variables and define `facts`."""

    name: ClassVar[str]
    """Of its URL: ``admin:django_fairque_<name>``."""
    path: ClassVar[str]
    """Below the app's own URL, such as ``users/``."""
    title: ClassVar[StrOrPromise]
    permission: ClassVar[str]
    """To see it: a codename of `Queue`, such as ``view_user``."""
    template: ClassVar[str]
    """Extends ``admin/django_fairque/page.html``."""
    actions: ClassVar[dict[str, Action]] = {}
    in_menu: ClassVar[bool] = True
    list_name: ClassVar[str] = ""
    """The page to go to from here if what was asked for is not there; empty for this one, without its query."""
    refreshes: ClassVar[bool] = True
    """Whether its content is renewed every few seconds."""

    model_admin: Any = None
    """The `QueueAdmin` below which the page hangs; given to `as_view`."""
    request: HttpRequest

    def facts(self, queue: FairQueue) -> dict[str, Any]:
        """What the template shows. Whatever is read of the queue is read here, or the banner can't take its place.

        Raises:
            RedisConnectionError: shown as a banner. TaskNotFoundError, TaskValidationError, NotHereError: said above the
                list that is shown instead (`list_name`).
        """
        raise NotImplementedError

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not self.may(self.permission):
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    def may(self, codename: str) -> bool:
        """Whether whoever asks has a permission."""
        return self.request.user.has_perm(f"{APP}.{codename}")

    @property
    def queue_name(self) -> str:
        return self.request.GET.get("queue") or "default"

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        queues, trouble, facts = ["default"], "", {}
        missing: tuple[int, ...] = ()
        try:
            queues = queue_names()
            if self.queue_name not in queues:
                raise Http404(_("There is no queue %(name)s.") % {"name": self.queue_name})
            queue = page_queue(self.queue_name)
            facts = self.facts(queue)
            missing = queue.missing_shards  # as the facts were read
        except (TaskNotFoundError, TaskValidationError, NotHereError) as error:
            return self._instead(request, str(error))
        except (RedisConnectionError, ConfigurationError) as error:
            trouble = str(error)
        is_fragment = FRAGMENT_HEADER in request.headers
        context = {
            **self.model_admin.admin_site.each_context(request),
            "opts": Queue._meta,
            "title": self.title,
            "page": self,
            "base": f"admin/{APP}/{'fragment' if is_fragment else 'page'}.html",
            "menu": self.menu(),
            "queues": queues,
            "queue": self.queue_name,
            "trouble": trouble,
            "is_known": not trouble,
            "missing": ", ".join(map(str, missing)),
            "may": {codename: self.may(codename) for codename in self._codenames()},
            **facts,
        }
        request.current_app = self.model_admin.admin_site.name  # as the admin's own views do
        response = TemplateResponse(request, self.template, context)
        patch_vary_headers(response, [FRAGMENT_HEADER])
        patch_cache_control(response, private=True, no_cache=True, no_store=True)
        return response

    def _instead(self, request: HttpRequest, sentence: str) -> HttpResponse:
        """To the list, which says what is not there; as the admin does for an object of a database."""
        where = self.url(self.list_name or self.name)
        if FRAGMENT_HEADER in request.headers or where == request.get_full_path():
            raise Http404(sentence)  # to a script, and where there is nothing else to show
        messages.warning(request, sentence)
        return HttpResponseRedirect(where)

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Do something, say what became of it, and show the page again."""
        action = self.actions.get(request.POST.get("action", ""))
        if action is None:
            raise Http404(_("There is no such action here."))
        if not self.may(action.permission):
            raise PermissionDenied
        try:
            if self.queue_name not in queue_names():
                raise Http404(_("There is no queue %(name)s.") % {"name": self.queue_name})
            queue = page_queue(self.queue_name)
            done = action.method(self, queue, request)
        except (FairQueueError, ValueError) as error:
            if isinstance(error, ShardsAwayError) and len(error.shards) < queue.config.shards:
                self.log(action.subject(self, request), str(error))  # it may have been done on the others
            messages.error(request, str(error))
            self.met(error)
        else:
            self.log(action.subject(self, request), done)
            messages.success(request, done)
        return HttpResponseRedirect(self.back_to(request))

    def met(self, error: Exception) -> None:
        """An action has ended in this error, which is told."""

    def back_to(self, request: HttpRequest) -> str:
        """Where to go after an action: this very page, with its query."""
        return request.get_full_path()

    def log(self, subject: str, sentence: str) -> None:
        """Leave a line in the admin's audit trail: to which queue, and which part of it, what was done.

        What is too long for the line's subject, such as the ids of many tasks, stands in its text.
        """
        name = f"{self.queue_name}: {subject}" if subject else self.queue_name
        if len(name) > MOST_OF_SUBJECT:
            sentence = f"{sentence} {name}"
        name, sentence = (text.replace("\0", "\N{SYMBOL FOR NULL}") for text in (name, sentence))  # PostgreSQL has none
        self.model_admin.log_change(self.request, Queue(name=name[:MOST_OF_SUBJECT]), sentence)

    def url(self, name: str, /, *args: Any, **query: str) -> str:
        """The URL of a page, for the queue that is shown."""
        from urllib.parse import urlencode

        site = self.model_admin.admin_site.name
        path = reverse(f"admin:{APP}_{name}", args=args, current_app=site)
        return f"{path}?{urlencode({'queue': self.queue_name, **query})}"

    def link(self, name: str, /, *args: Any, **query: str) -> str:
        """The URL of a page for whoever may see it; empty for the others."""
        from django_fairque.admin.page_list import PAGES

        (permission,) = (page.permission for page in PAGES if page.name == name)
        return self.url(name, *args, **query) if self.may(permission) else ""

    def menu(self) -> list[dict[str, Any]]:
        """The pages that whoever asks may see."""
        from django_fairque.admin.page_list import PAGES

        return [
            {"title": each.title, "url": self.url(each.name), "is_here": each is type(self)}
            for each in PAGES
            if each.in_menu and self.may(each.permission)
        ]

    @staticmethod
    def _codenames() -> list[str]:
        return [
            *(codename for codename, _name in Queue._meta.permissions),
            "view_queue",
            "change_queue",
            "delete_queue",
        ]
