"""What all pages share: who may see and do what, which queue, a server that is down, the audit trail, fragments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

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
from django_fairque.monitoring.formatting import number
from django_fairque.tasks import canceling

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from django.forms import Form
    from django.http import HttpRequest, HttpResponse
    from django_stubs_ext import StrOrPromise

    from django_fairque.engine.queue.queue import FairQueue


APP = "django_fairque"
FRAGMENT_HEADER = "X-Fairque-Fragment"
"""Sent by the script that refreshes a page: only what changes is wanted."""
SUBJECT_MAX_CHARACTERS = 200
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
    """What the address names does not exist (any more). `Page.template_context` raises it, with a sentence for the reader."""


class AdminPage(View):
    """One page of one queue. Subclasses set the class variables and define `template_context`."""

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
    """The page to go to from here if the requested object does not exist; empty for this one, without its query."""
    refreshes: ClassVar[bool] = True
    """Whether its content is renewed every few seconds."""

    model_admin: Any = None
    """The `QueueAdmin` below which the page hangs; given to `as_view`."""
    request: HttpRequest

    def template_context(self, queue: FairQueue) -> dict[str, Any]:
        """What the template shows. Whatever is read of the queue is read here, or the banner can't take its place.

        Raises:
            RedisConnectionError: shown as a banner. TaskNotFoundError, TaskValidationError, NotHereError: shown above the
                list that is shown instead (`list_name`).
        """
        raise NotImplementedError

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not self.may(self.permission):
            raise PermissionDenied
        return super().dispatch(request, *args, **kwargs)

    def may(self, codename: str) -> bool:
        """Whether the request's user has a permission."""
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
            facts = self.template_context(queue)
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
            self.report_failure(error)
        else:
            self.log(action.subject(self, request), done)
            messages.success(request, done)
        return HttpResponseRedirect(self.back_to(request))

    def report_failure(self, error: Exception) -> None:
        """An action has ended in this error, which is shown."""

    def back_to(self, request: HttpRequest) -> str:
        """Where to go after an action: this very page, with its query."""
        return request.get_full_path()

    def log(self, subject: str, sentence: str) -> None:
        """Leave a line in the admin's audit trail: to which queue, and which part of it, what was done.

        What is too long for the line's subject, such as the ids of many tasks, stands in its text.
        """
        name = f"{self.queue_name}: {subject}" if subject else self.queue_name
        if len(name) > SUBJECT_MAX_CHARACTERS:
            sentence = f"{sentence} {name}"
        name, sentence = (text.replace("\0", "\N{SYMBOL FOR NULL}") for text in (name, sentence))  # PostgreSQL has none
        self.model_admin.log_change(self.request, Queue(name=name[:SUBJECT_MAX_CHARACTERS]), sentence)

    def url(self, name: str, /, *args: Any, **query: str) -> str:
        """The URL of a page, for the queue that is shown."""
        from urllib.parse import urlencode

        site = self.model_admin.admin_site.name
        path = reverse(f"admin:{APP}_{name}", args=args, current_app=site)
        return f"{path}?{urlencode({'queue': self.queue_name, **query})}"

    def link(self, name: str, /, *args: Any, **query: str) -> str:
        """The URL of a page, or empty if the user may not see it."""

        (permission,) = (page.permission for page in self.model_admin.pages if page.name == name)
        return self.url(name, *args, **query) if self.may(permission) else ""

    def menu(self) -> list[dict[str, Any]]:
        """The pages that the request's user may see."""

        return [
            {"title": each.title, "url": self.url(each.name), "is_here": each is type(self)}
            for each in self.model_admin.pages
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


class Question(Exception):  # noqa: N818 - it is no error
    """Raised by an action's method in place of acting: the question, and what a "yes" posts in addition to ``confirm=yes``.

    Args:
        text: a paragraph, or several of which empty ones are left out.
        yes: what the button says.
        fields: what is posted, a value or several of a name.
        progress: how many are done already, and of how many.
    """

    def __init__(
        self,
        text: str | Sequence[str],
        yes: str,
        fields: Mapping[str, str | Sequence[str]],
        *,
        title: str = "",
        progress: tuple[int, int] | None = None,
    ) -> None:
        self.paragraphs = [text] if isinstance(text, str) else [each for each in text if each]
        super().__init__(*self.paragraphs)
        self.title, self.yes, self.fields, self.progress = title, yes, fields, progress

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Of the form."""
        values = {name: [value] if isinstance(value, str) else value for name, value in self.fields.items()}
        return [(name, each) for name, several in values.items() for each in several]


def is_confirmed(request: HttpRequest) -> bool:
    return request.POST.get("confirm") == "yes"


def ask_first(request: HttpRequest, text: str | Sequence[str], yes: str, title: str = "") -> None:
    """Raise a `Question` that posts the same again, unless this is its answer."""
    if not is_confirmed(request):
        own = ("csrfmiddlewaretoken", "action", "confirm")
        fields = {name: [str(each) for each in values] for name, values in request.POST.lists() if name not in own}
        raise Question(text, yes, fields, title=title)


class ConfirmingPage(AdminPage):
    """A page whose actions may raise a `Question`: nothing but a POST with ``confirm=yes`` answers it."""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return super().post(request, **kwargs)
        except Question as question:
            return self._ask(request, question)

    def _ask(self, request: HttpRequest, question: Question) -> HttpResponse:
        request.current_app = self.model_admin.admin_site.name
        context = {
            **self.model_admin.admin_site.each_context(request),
            "opts": Queue._meta,
            "title": self.title,
            "base": f"admin/{APP}/page.html",
            "menu": self.menu(),
            "queues": [self.queue_name],
            "queue": self.queue_name,
            "question": question,
            "action": request.POST["action"],
            "back": self.back_to(request),
        }
        response = TemplateResponse(request, f"admin/{APP}/confirm.html", context)
        patch_cache_control(response, private=True, no_cache=True, no_store=True)
        return response


class InvalidForm(Exception):  # noqa: N818 - no error of anybody's code: the page is shown again
    """Raised by an action whose form has mistakes; nothing was done."""

    def __init__(self, form: Form) -> None:
        super().__init__(form.errors.as_text())
        self.form = form


class FormPage(ConfirmingPage):
    """A page whose actions may raise `InvalidForm`. The page that is shown then is not renewed by itself."""

    form: Form | None = None
    """With mistakes, as it was posted."""

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        try:
            return super().post(request, **kwargs)
        except InvalidForm as invalid:
            self.form = invalid.form
        self.hold()
        return self.get(request, **kwargs)

    def hold(self) -> None:
        """Keep the script from renewing what somebody fills in."""
        self.refreshes = False  # type: ignore[misc]  # of this request's page only


_WRITTEN_OUT = str.maketrans({char: f"%{ord(char):02X}" for char in "%\r\n\0"})


def in_form(value: str) -> str:
    """As the value of a hidden field or a checkbox."""
    return value.translate(_WRITTEN_OUT)


def posted(request: HttpRequest, name: str) -> str:
    """What `in_form` was given; empty if nothing came."""
    return unquote(request.POST.get(name, ""))


def posted_list(request: HttpRequest, name: str) -> list[str]:
    """Each once, in their order."""
    return list(dict.fromkeys(map(unquote, request.POST.getlist(name))))


def moment(seconds: float | None) -> datetime | None:
    """Aware, in UTC: templates show it in the admin's time zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


PURGES_PER_REQUEST = 10_000
"""Tasks canceled by one request: about a second's work, so that no proxy gives up on it."""


def purge(
    page: AdminPage,
    subject: str,
    queue: FairQueue,
    cancel: Callable[..., int],
    waiting: Callable[[], int],
    summary_of: Callable[[int], str],
    question: Callable[..., Question],
) -> str:
    """Cancel at most `PURGES_PER_REQUEST` tasks; what was done, or as long as more wait, the question whether to go on.

    Args:
        subject: whose they are, for the audit trail: each slice is a line of it.
        cancel: cancels at most this number of them, notes their ids, and returns how many it canceled.
        said: the sentence about the number of canceled tasks.
        question: the question about the tasks that still wait, after that sentence.
    """
    if not is_confirmed(page.request):
        raise question(waiting())
    done = canceling.cancel_and_send_signals(queue, lambda note: cancel(PURGES_PER_REQUEST, note=note))
    text = summary_of(done)
    left = waiting() if done >= PURGES_PER_REQUEST else 0
    if left:
        page.log(subject, text)
        raise question(left, text)
    return text


def at_most(count: int) -> str:
    """What to say about this number of tasks; empty if all are canceled at once."""
    text = _("At most %(most)s tasks are canceled at once; then you confirm to go on.")
    return text % {"most": number(PURGES_PER_REQUEST)} if count > PURGES_PER_REQUEST else ""


def canceled_by(request: HttpRequest) -> str:
    """Return who canceled a task, for its history."""
    return f"canceled by {request.user.get_username()}"
