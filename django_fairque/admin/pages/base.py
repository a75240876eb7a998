"""The base class of all pages: permissions, the queue, a banner if the server is down, the audit trail, fragments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from urllib.parse import unquote, urlencode

import django
from django import forms
from django.contrib import messages
from django.contrib.admin.utils import unquote as unquote_key
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views import View

from django_fairque.admin.page_queues import page_queue, queue_names
from django_fairque.admin.status_line import read_status
from django_fairque.audit import collect_acts, read_entries, write_entry
from django_fairque.engine.model import errors
from django_fairque.engine.model.lanes import LANES, Lane
from django_fairque.engine.scripting.acts import Act, merge_acts
from django_fairque.engine.statistics.queue_stats import have_other_lanes
from django_fairque.models import AuditEntry, OutboxEntry, Queue
from django_fairque.monitoring.formatting import number
from django_fairque.monitoring.translations import word
from django_fairque.tasks import results

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_fairque.admin.status_line import StatusLine
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.queue_stats import LaneStats, Percentiles


T = TypeVar("T")

APP = "django_fairque"
FRAGMENT_HEADER = "X-Fairque-Fragment"
"""A header of the script that refreshes a page: the response contains only the parts that change."""
SLICES_SECONDS = 3600.0
"""Seconds for which a confirmed act on many objects may go on as one entry of the audit."""
PURGES_PER_REQUEST = 10_000
"""Tasks canceled by one request: about a second's work, so that no proxy gives up on it."""


@dataclass
class Action:
    """Makes a page's method an action: a POST with ``action`` set to the method's name calls the method.

    The method returns the sentence to show and to log. To show an error instead, the method raises a `FairQueueError` or
    `ValueError`. To ask for confirmation, the method raises a `Question`; to show a form with its mistakes, an `InvalidForm`.
    """

    permission: str
    method: Callable[[Any], str] = field(init=False)

    def __call__(self, method: Callable[[Any], str]) -> Action:
        self.method = method
        return self

    def __set_name__(self, page: type[AdminPage], name: str) -> None:
        page.actions = {**page.actions, name: self}


class NotHereError(Exception):
    """The object in the address does not exist (any more). `AdminPage.template_context` raises it with a sentence for the
    reader."""


@dataclass(eq=False)
class Question(Exception):  # noqa: N818 - it is no error
    """Raised by an action's method in place of acting. A "yes" posts the same again, with ``confirm=yes``."""

    paragraphs: Sequence[str]
    """Texts of the question; empty ones are left out."""
    yes: str
    """The text of the button."""
    title: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Fields that are posted in addition."""
    progress: tuple[int, int] | None = None
    """The number of objects that are done, and the number of all objects."""
    is_dangerous: bool = False
    """Whether the button is red: work is lost."""
    chooses_lane: bool = False
    """Whether the question has a field for the lane of the tasks."""
    offers_act: bool = False
    """Whether workers can carry the action out as an act, with a pace, a trial and a note."""


@dataclass(eq=False)
class InvalidForm(Exception):  # noqa: N818 - no error of anybody's code: the page is shown again
    """Raised by an action whose form has mistakes; nothing was done. A ``mistake`` is added to the form's ``field``, if
    given."""

    form: forms.Form
    field: str = ""
    mistake: object = ""

    def __post_init__(self) -> None:
        if self.field:
            self.form.add_error(self.field, str(self.mistake))


class AdminPage(View):
    """One page of one queue. Subclasses set the class variables and define `template_context` and their `Action`s."""

    name: ClassVar[str]
    """The name in the page's URL (``admin:django_fairque_<name>``) and in its template, which extends
    ``admin/django_fairque/page.html``."""
    path: ClassVar[str] = ""
    """The path below the app's own URL; ``<name>/`` by default."""
    title: ClassVar[StrOrPromise]
    permission: ClassVar[str]
    """The permission to see the page: a codename of `Queue`, such as ``view_user``."""
    actions: ClassVar[dict[str, Action]] = {}
    list_name: ClassVar[str] = ""
    """The page to go to from here if the requested object does not exist; empty for this one, without its query."""
    subject_field: ClassVar[str] = ""
    """The posted field that names the object of an action."""
    preview_permission: ClassVar[str] = ""
    """The permission to see the effects of a form before it is posted: ``?preview=1``, for the script of the form."""

    lanes: ClassVar[Sequence[Lane]] = LANES
    """The choices of ``lane_field.html``."""
    refreshes: bool = True
    """Whether the content is renewed every few seconds. Off while an operator fills in a form."""
    model_admin: Any = None
    """The `QueueAdmin` below which the page hangs; given to `as_view`."""
    form: forms.Form | None = None
    """The form as it was posted, with its mistakes."""
    entry: AuditEntry | None = None
    """The entry of the audit that the request has written."""
    request: HttpRequest
    queue: FairQueue
    _acts: list[Act]
    """The acts of the request that are not in the audit yet."""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "name"):
            cls.path = cls.path or f"{cls.name.replace('_', '-')}/"

    def template_context(self) -> dict[str, Any]:
        """Return the context of the template.

        All reads of the queue belong here: if one fails, the page shows a banner in place of the queue's figures.

        Raises:
            RedisConnectionError: shown as a banner. TaskNotFoundError, TaskValidationError, NotHereError: shown above the
                list that is shown instead (`list_name`).
        """
        raise NotImplementedError

    def preview_context(self) -> dict[str, Any]:
        """Return the context of the template ``<name>_preview.html``. Needed if there is a `preview_permission`."""
        raise NotImplementedError

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not self.may(self.permission):
            raise PermissionDenied
        if self.preview_permission and "preview" in request.GET and request.method == "GET":
            if not self.may(self.preview_permission):
                raise PermissionDenied
            response = TemplateResponse(request, f"admin/{APP}/{self.name}_preview.html", self.preview_context())
            patch_cache_control(response, private=True, no_cache=True, no_store=True)
            return response
        return super().dispatch(request, *args, **kwargs)

    def may(self, codename: str) -> bool:
        """Whether the request's user has a permission."""
        return self.request.user.has_perm(f"{APP}.{codename}")

    @property
    def queue_name(self) -> str:
        return self.request.GET.get("queue") or "default"

    @cached_property
    def status(self) -> StatusLine:
        """The health of all queues. Reasons are only for users with the permission to see queues."""
        return read_status(self.link, self.queue_name, shows_reasons=self.may("view_queue"))

    @property
    def key(self) -> str:
        """The id in the path, as the admin quotes keys: it may hold any characters."""
        return unquote_key(self.kwargs["key"])

    @property
    def subject(self) -> str:
        """The object of an action, for the audit; empty for the queue."""
        return unquote(self.request.POST.get(self.subject_field, ""))

    @property
    def is_confirmed(self) -> bool:
        return self.request.POST.get("confirm") == "yes"

    @property
    def canceled_by(self) -> str:
        """The entry in the history of a canceled task; it names the operator."""
        return f"canceled by {self.request.user.get_username()}"

    @property
    def lane(self) -> Lane:
        """The lane that the form chose; "normal" by default. The engine refuses an unknown one."""
        return cast("Lane", self.request.POST.get("lane") or "normal")

    def with_lane(self, sentence: str) -> str:
        """Add the chosen lane to a sentence about tasks that were queued; nothing for lane normal."""
        if self.lane == "normal":
            return sentence
        return _("%(sentence)s (lane: %(lane)s)") % {"sentence": sentence, "lane": word(self.lane)}

    def posted_list(self, name: str) -> list[str]:
        """Return the posted values that `in_form` encoded: each once, in their order."""
        return list(dict.fromkeys(map(unquote, self.request.POST.getlist(name))))

    def posted_number(self, name: str, default: str = "") -> float:
        """A number that a question's form brings back."""
        text = self.request.POST.get(name, default)
        if not re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", text):
            raise ValueError(_("The form was not complete: go back and begin again. Nothing was changed."))
        return float(text)

    def _open_queue(self) -> list[str]:
        """Set `queue`; return the names of all."""
        names = queue_names()
        if self.queue_name not in names:
            raise Http404(_("There is no queue %(name)s.") % {"name": self.queue_name})
        self.queue = page_queue(self.queue_name)
        return names

    def get(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        queues, trouble, facts = ["default"], "", {}
        missing: tuple[int, ...] = ()
        try:
            queues = self._open_queue()
            facts = self.template_context()
            missing = self.queue.missing_shards  # the property reads shards that are missing now
        except (errors.TaskNotFoundError, errors.TaskValidationError, NotHereError) as error:
            where = self.url(self.list_name or self.name)
            if FRAGMENT_HEADER in request.headers or where == request.get_full_path():
                raise Http404(str(error)) from error  # for scripts, and if there is no list to show
            messages.warning(request, str(error))  # in the list, as Django's admin does
            return HttpResponseRedirect(where)
        except (errors.RedisConnectionError, errors.ConfigurationError) as error:
            trouble = str(error)
        codenames = (*(name for name, _name in Queue._meta.permissions), "view_queue", "change_queue", "delete_queue")
        return self._respond(
            self.name,
            queues=queues,
            trouble=trouble,
            is_known=not trouble,
            missing=", ".join(map(str, missing)),
            may={codename: self.may(codename) for codename in codenames},
            **facts,
        )

    def _respond(self, template: str, **context: Any) -> HttpResponse:
        site, request = self.model_admin.admin_site, self.request
        request.current_app = site.name  # templates of the admin need the name of the site
        layout = "fragment" if FRAGMENT_HEADER in request.headers else "page"
        shown = {
            **site.each_context(request),
            "opts": Queue._meta,
            # Django 6.1 and its themes style only "ol.breadcrumbs", those before only "div.breadcrumbs".
            "has_breadcrumb_list": django.VERSION >= (6, 1),
            "title": self.title,
            "page": self,
            "base": f"admin/{APP}/{layout}.html",
            "menu": self.menu(),
            "queue": self.queue_name,
            "status": self.status,
            **context,
        }
        response = TemplateResponse(request, f"admin/{APP}/{template}.html", shown)
        patch_vary_headers(response, [FRAGMENT_HEADER])
        patch_cache_control(response, private=True, no_cache=True, no_store=True)
        return response

    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        """Call an action, report its result, and show the page again."""
        action = self.actions.get(request.POST.get("action", ""))
        if action is None:
            raise Http404(_("There is no such action here."))
        if not self.may(action.permission):
            raise PermissionDenied
        try:
            self._open_queue()
            with collect_acts() as self._acts:
                done = action.method(self)
        except Question as question:
            own = (
                "csrfmiddlewaretoken",
                "action",
                "confirm",
                "lane" if question.chooses_lane else "",
                "audit_entry",
                *question.fields,
            )
            pairs = [(name, value) for name, values in request.POST.lists() if name not in own for value in values]
            pairs += question.fields.items()
            pairs += [("audit_entry", str(self.entry.pk))] if self.entry else []
            facts = {"queues": [self.queue_name], "question": question, "pairs": pairs, "back": self.get_return_url()}
            return self._respond("confirm", action=request.POST["action"], **facts)
        except InvalidForm as invalid:
            self.form, self.refreshes = invalid.form, False
            return self.get(request, **kwargs)
        except (errors.FairQueueError, ValueError) as error:
            if self._acts:
                self.log(str(error))  # a part of it was done
            messages.error(request, str(error))
            self.report_failure(error)
        else:
            self.log(done)
            messages.success(request, done)
        return HttpResponseRedirect(self.get_return_url())

    def report_failure(self, error: Exception) -> None:
        """Called if an action ended in this error, which is shown."""

    def get_return_url(self) -> str:
        """Return the URL of the page after an action: this page, with its query."""
        return self.request.get_full_path()

    def ask_first(self, text: str, yes: str, title: str = "", *, is_dangerous: bool = False) -> None:
        """Raise a `Question`, unless the request is the answer."""
        if not self.is_confirmed:
            raise Question([text], yes, title, is_dangerous=is_dangerous)

    def ask_before_pause(self) -> None:
        """Ask if the button is in a row of a list, next to the buttons of other customers."""
        if not self.request.GET.get(self.subject_field):
            text = _("%(customer)s: until it is resumed, none of its tasks start; running tasks go on.")
            self.ask_first(text % {"customer": self.subject}, _("Yes, pause it"))

    def purge_slice(
        self,
        cancel: Callable[..., int],
        waiting: Callable[[], int],
        summary_of: Callable[[int], str],
        question: Callable[..., Question],
    ) -> str:
        """Cancel at most `PURGES_PER_REQUEST` tasks, and return the summary. If more tasks wait, ask whether to go on.

        Args:
            cancel: cancels at most this number of tasks, notes their ids, and returns the number of canceled tasks.
            waiting: counts the tasks that still wait.
            summary_of: returns the sentence about the number of canceled tasks.
            question: returns the question about the tasks that still wait, after that sentence.
        """
        if not self.is_confirmed:
            raise question(waiting())
        done = results.cancel_and_send_signals(self.queue, lambda note: cancel(PURGES_PER_REQUEST, note=note))
        total = int(self.posted_number("done", "0")) + done
        text = summary_of(total)
        left = waiting() if done >= PURGES_PER_REQUEST else 0
        if left:
            self.log(text)
            further = question(left, text)
            further.fields = {"done": str(total)}
            raise further
        return text

    def log(self, sentence: str) -> None:
        """Write what the request has done into the audit, with the sentence that the operator sees.

        If the request goes on with an act on many objects, its entry is extended: one act is one entry.
        """
        nothing = Act(self.queue_name, self.request.POST["action"], self.subject_field or self.name.replace("_", " "))
        act = merge_acts(self._acts or [nothing])
        self._acts = []
        act = replace(act, subject=self.subject or act.subject)
        actor = self.request.user.get_username()
        self.entry = write_entry(actor, "admin", act, text=sentence, earlier=self._find_earlier(actor, act))

    def _find_earlier(self, actor: str, act: Act) -> AuditEntry | None:
        """Return the entry that the form names, if it is of the same operator and act."""
        number = self.request.POST.get("audit_entry", "")
        if not re.fullmatch("[0-9]{1,18}", number):
            return None
        since = timezone.now() - timedelta(seconds=SLICES_SECONDS)
        same = read_entries().filter(actor=actor, source="admin", queue=act.queue, act=act.name, at__gte=since)
        found: AuditEntry | None = same.filter(pk=int(number)).first()
        return found

    def url(self, name: str, /, *args: Any, **query: str) -> str:
        """The URL of a page, for the queue that is shown."""
        path = reverse(f"admin:{APP}_{name}", args=args, current_app=self.model_admin.admin_site.name)
        return f"{path}?{urlencode({'queue': self.queue_name, **query})}"

    def link(self, name: str, /, *args: Any, **query: str) -> str:
        """The URL of a page, or empty if the user may not see it."""
        (permission,) = (page.permission for page in self.model_admin.pages if page.name == name)
        return self.url(name, *args, **query) if self.may(permission) else ""

    def build_page_links(self, following: str | None, parameter: str = "cursor", **query: str) -> dict[str, str]:
        """The links to a list's next page, which begins at ``following``, and from any but the first page to that."""
        return {
            "next": self.url(self.name, **query, **{parameter: following}) if following else "",
            "first": self.url(self.name, **query) if self.request.GET.get(parameter) else "",
        }

    def build_hour_links(self, hours: Iterable[int], *args: str, **query: str) -> list[tuple[str, str, str]]:
        """The links to the periods that a page can show: hours, text and URL."""
        week = {168: _("last 7 days")}
        return [
            (
                str(count),
                week.get(count) or ngettext("last hour", "last %(hours)d hours", count) % {"hours": count},
                self.url(self.name, *args, hours=str(count), **query),
            )
            for count in hours
        ]

    def menu(self) -> list[tuple[StrOrPromise, list[dict[str, Any]]]]:
        """The groups of pages that the request's user may see, and the outbox, which belongs to all queues."""
        site = self.model_admin.admin_site
        groups = [
            (
                group,
                [
                    {"title": page.title, "url": self.url(page.name), "is_here": page is type(self)}
                    for page in pages
                    if self.may(page.permission)
                ],
            )
            for group, pages in self.model_admin.menu
        ]
        if site.is_registered(OutboxEntry) and self.may("view_outboxentry"):
            path = reverse(f"admin:{APP}_outboxentry_changelist", current_app=site.name)
            groups[-1][1].append({"title": _("Outbox"), "url": path, "is_here": False})
        return [(group, pages) for group, pages in groups if pages]


def refusal(error: errors.FairQueueError) -> forms.ValidationError:
    """Return the error that a form shows at a field whose value the engine refuses."""
    return forms.ValidationError(_("This can't be used: %(error)s") % {"error": error})


def run_form_check(check: Callable[..., T], *values: Any) -> T:
    """Return the result of the check. If the check refuses the values, raise a form error."""
    try:
        return check(*values)
    except errors.TaskValidationError as error:
        raise refusal(error) from None


def at_most(count: int) -> str:
    """Return a note for this number of tasks; empty if one request can cancel all of them."""
    text = _("At most %(most)s tasks are canceled at once; then you confirm to go on.")
    return text % {"most": number(PURGES_PER_REQUEST)} if count > PURGES_PER_REQUEST else ""


def lane_rows(
    lanes: Mapping[Lane, LaneStats], waits: Mapping[Lane, Percentiles]
) -> list[tuple[Lane, LaneStats, Percentiles | None]]:
    """Return the rows of ``lanes.html``; none if the queue has not had urgent or bulk tasks."""
    if not have_other_lanes(lanes):
        return []
    return [(lane, figures, waits[lane] if waits[lane].count else None) for lane, figures in lanes.items()]
