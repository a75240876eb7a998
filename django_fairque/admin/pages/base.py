"""The base class of all pages: permissions, the choice of a queue, a banner if the server is down, the audit log, and
parts of pages that are refreshed.
"""

from __future__ import annotations

import re
import time
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
from django_fairque.monitoring.reports.user_report import time_of_day
from django_fairque.monitoring.translations import word
from django_fairque.tasks import results

if TYPE_CHECKING:
    from django_stubs_ext import StrOrPromise

    from django_fairque.admin.status_line import StatusLine
    from django_fairque.engine.model.records import ActKind
    from django_fairque.engine.queue.queue import FairQueue
    from django_fairque.engine.statistics.queue_stats import LaneStats, Percentiles


T = TypeVar("T")

APP = "django_fairque"
FRAGMENT_HEADER = "X-Fairque-Fragment"
"""A request header that the script for refreshing a page sends. The response then contains only the parts of the page
that change."""
SLICES_SECONDS = 3600.0
"""Seconds within which further steps of a confirmed action on many objects extend the same audit entry."""
PURGES_PER_REQUEST = 10_000
"""Maximum number of tasks that one request cancels, which takes about a second, so that no proxy closes the
connection."""


@dataclass
class Action:
    """Makes a method of a page an action. A POST request whose field ``action`` contains the method's name calls the
    method.

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
    """Raised by `AdminPage.template_context` if the URL names an object, a page or a value that does not exist. The visitor
    is led to the list, with the error's text above it.
    """


@dataclass(eq=False)
class Question(Exception):  # noqa: N818 - it is no error
    """Raised by an action that needs a confirmation first. The "yes" button posts the same fields again, together with
    ``confirm=yes``.
    """

    paragraphs: Sequence[str]
    """The paragraphs of the question; empty texts are left out."""
    yes: str
    """The text of the "yes" button."""
    title: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Additional fields that the "yes" button posts."""
    progress: tuple[int, int] | None = None
    """Two numbers: the objects that are done, and all objects."""
    is_dangerous: bool = False
    """Whether the "yes" button is red, because the action loses work."""
    chooses_lane: bool = False
    """Whether the question has a field for the lane of the tasks."""
    offers_act: bool = False
    """Whether workers can carry the action out as an act, with a pace, a trial and a note."""
    is_act_only: bool = False
    """Whether only workers can carry it out."""
    act_choice: tuple[str, StrOrPromise, Sequence[str]] | None = None
    """A further field of the act: its name, its label, and its values, of which an empty one stands for all."""


@dataclass(eq=False)
class InvalidForm(Exception):  # noqa: N818 - no error of anybody's code: the page is shown again
    """Raised by an action whose form has mistakes; the action changed nothing. If ``field`` is given, ``mistake`` is
    shown at this field of the form.
    """

    form: forms.Form
    field: str = ""
    mistake: object = ""

    def __post_init__(self) -> None:
        if self.field:
            self.form.add_error(self.field, str(self.mistake))


class AdminPage(View):
    """A page about one queue. Subclasses set the class variables, and define `template_context` and their `Action`
    methods.
    """

    name: ClassVar[str]
    """The page's name in its URL (``admin:django_fairque_<name>``) and in the name of its template, which extends
    ``admin/django_fairque/page.html``."""
    path: ClassVar[str] = ""
    """The page's path below the URL of the app; ``<name>/`` by default."""
    title: ClassVar[StrOrPromise]
    permission: ClassVar[str]
    """The permission that is necessary to see the page: a codename of `Queue`, such as ``view_user``."""
    actions: ClassVar[dict[str, Action]] = {}
    list_name: ClassVar[str] = ""
    """The page to which the reader is redirected if the requested object does not exist; empty for this page without
    its query."""
    subject_field: ClassVar[str] = ""
    """The posted field that identifies the object of an action."""
    preview_permission: ClassVar[str] = ""
    """The permission to preview the effects of a form: the form's script requests ``?preview=1``. Empty if the page has
    no preview."""

    lanes: ClassVar[Sequence[Lane]] = LANES
    """The lanes that ``lane_field.html`` offers."""
    refreshes: bool = True
    """Whether the content of the page is refreshed every few seconds. False while an operator fills in a form."""
    model_admin: Any = None
    """The `QueueAdmin` to which the page belongs; passed to `as_view`."""
    form: forms.Form | None = None
    """The posted form with its mistakes, which is shown again."""
    entry: AuditEntry | None = None
    """The audit entry that the request has written."""
    act_id: str = ""
    """The act on many tasks that the request has started."""
    request: HttpRequest
    queue: FairQueue
    _acts: list[Act]
    """Changes by the request that are not written to the audit log yet."""

    def __init_subclass__(cls) -> None:
        if hasattr(cls, "name"):
            cls.path = cls.path or f"{cls.name.replace('_', '-')}/"

    def template_context(self) -> dict[str, Any]:
        """Return the variables of the page's template.

        All reads of the queue belong in this method: if a read fails, the page shows a banner instead of the queue's
        figures.

        Raises:
            RedisConnectionError: shown as a banner. TaskNotFoundError, TaskValidationError, NotHereError: shown above the
                list that is shown instead (`list_name`).
        """
        raise NotImplementedError

    def preview_context(self) -> dict[str, Any]:
        """Return the variables of the template ``<name>_preview.html``. Only used if the page has a
        `preview_permission`.
        """
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
        """Return whether the request's user has a permission."""
        return self.request.user.has_perm(f"{APP}.{codename}")

    @property
    def queue_name(self) -> str:
        return self.request.GET.get("queue") or "default"

    @cached_property
    def status(self) -> StatusLine:
        """The health of all queues. The reasons are included only if the user has the permission to see queues."""
        return read_status(self.link, self.queue_name, shows_reasons=self.may("view_queue"))

    @property
    def key(self) -> str:
        """The object's id in the path. The id may contain any characters, so the admin's quoting is removed."""
        return unquote_key(self.kwargs["key"])

    @property
    def subject(self) -> str:
        """The object of an action, for the audit log; empty if the action is about the queue itself."""
        return unquote(self.request.POST.get(self.subject_field, ""))

    @property
    def is_confirmed(self) -> bool:
        return self.request.POST.get("confirm") == "yes"

    @property
    def canceled_by(self) -> str:
        """The text for the history of a canceled task. The text names the operator."""
        return f"canceled by {self.request.user.get_username()}"

    @property
    def lane(self) -> Lane:
        """The lane that was chosen in the form; "normal" by default. The engine refuses an unknown lane."""
        return cast("Lane", self.request.POST.get("lane") or "normal")

    def with_lane(self, sentence: str) -> str:
        """Add the chosen lane to a sentence about queued tasks. The sentence is unchanged for the normal lane."""
        if self.lane == "normal":
            return sentence
        return _("%(sentence)s (lane: %(lane)s)") % {"sentence": sentence, "lane": word(self.lane)}

    def posted_list(self, name: str) -> list[str]:
        """Return the values of a posted field, which `in_form` has encoded, without duplicates and in their order."""
        return list(dict.fromkeys(map(unquote, self.request.POST.getlist(name))))

    def posted_number(self, name: str, default: str = "") -> float:
        """Return a number that the form of a question has posted back."""
        text = self.request.POST.get(name, default)
        if not re.fullmatch(r"[0-9]{1,10}(\.[0-9]{1,6})?", text):
            raise ValueError(_("The form was not complete: go back and begin again. Nothing was changed."))
        return float(text)

    def _open_queue(self) -> list[str]:
        """Set `queue` to the chosen queue. Return the names of all queues."""
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
            # the shards that these reads could not reach
            missing = self.queue.missing_shards
        except (errors.TaskNotFoundError, errors.TaskValidationError, NotHereError) as error:
            where = self.url(self.list_name or self.name)
            if FRAGMENT_HEADER in request.headers or where == request.get_full_path():
                raise Http404(str(error)) from error  # for scripts, and to avoid an endless redirect
            messages.warning(request, str(error))  # shown above the list, as in Django's admin
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
        request.current_app = site.name  # the admin's templates need the name of the admin site
        layout = "fragment" if FRAGMENT_HEADER in request.headers else "page"
        shown = {
            **site.each_context(request),
            "opts": Queue._meta,
            # Django 6.1 and themes for it style only "ol.breadcrumbs", older versions only "div.breadcrumbs".
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
                self.log(str(error))  # log the error, because a part of the action was done
            messages.error(request, str(error))
            self.report_failure(error)
        else:
            self.log(done)
            messages.success(request, done)
        return HttpResponseRedirect(self.get_return_url())

    def report_failure(self, error: Exception) -> None:
        """Called if an action raised this error, which the page shows. Subclasses may override this method."""

    def get_return_url(self) -> str:
        """Return the URL to show after an action: by default this page with its query, or the acts after the start of one."""
        return (self.link("acts") if self.act_id else "") or self.request.get_full_path()

    def start_act(self, kind: ActKind, **options: Any) -> str:
        """Start an act on the tasks that the operator has confirmed, and return the sentence to show."""
        act = self.queue.acts.start(
            kind,
            pace=self.posted_number("pace") if self.request.POST.get("pace") else None,
            trial="trial" in self.request.POST,
            note=self.request.POST.get("note", ""),
            actor=self.request.user.get_username(),
            **options,
        )
        self.act_id = act.id
        return _("Act %(act)s is started; workers carry it out") % {"act": act.id}

    def ask_first(self, text: str, yes: str, title: str = "", *, is_dangerous: bool = False) -> None:
        """Raise a `Question`, unless the request contains the confirmation."""
        if not self.is_confirmed:
            raise Question([text], yes, title, is_dangerous=is_dangerous)

    def ask_before_pause(self) -> None:
        """Ask for confirmation if the pause button is in a row of a list, next to the buttons of other users."""
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
            cancel: function that cancels at most a given number of tasks, records their ids, and returns the number of
                canceled tasks.
            waiting: function that returns the number of tasks that still wait.
            summary_of: function that returns the sentence about a number of canceled tasks.
            question: function that returns the question about the tasks that still wait; the question begins with that
                sentence.
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
        """Write the changes of the request into the audit log, with the sentence that the operator sees.

        If the request continues an action on many objects, the existing entry is extended, so that one action has one
        entry.
        """
        nothing = Act(self.queue_name, self.request.POST["action"], self.subject_field or self.name.replace("_", " "))
        act = merge_acts(self._acts or [nothing])
        self._acts = []
        act = replace(act, subject=self.subject or act.subject)
        actor = self.request.user.get_username()
        self.entry = write_entry(actor, "admin", act, text=sentence, earlier=self._find_earlier(actor, act))

    def _find_earlier(self, actor: str, act: Act) -> AuditEntry | None:
        """Return the audit entry that the form names, if it is about the same action of the same operator."""
        number = self.request.POST.get("audit_entry", "")
        if not re.fullmatch("[0-9]{1,18}", number):
            return None
        since = timezone.now() - timedelta(seconds=SLICES_SECONDS)
        same = read_entries().filter(actor=actor, source="admin", queue=act.queue, act=act.name, at__gte=since)
        found: AuditEntry | None = same.filter(pk=int(number)).first()
        return found

    def url(self, name: str, /, *args: Any, **query: str) -> str:
        """Return the URL of a page about the current queue."""
        path = reverse(f"admin:{APP}_{name}", args=args, current_app=self.model_admin.admin_site.name)
        return f"{path}?{urlencode({'queue': self.queue_name, **query})}"

    def link(self, name: str, /, *args: Any, **query: str) -> str:
        """Return the URL of a page about the current queue, or an empty text if the user may not see the page."""
        (permission,) = (page.permission for page in self.model_admin.pages if page.name == name)
        return self.url(name, *args, **query) if self.may(permission) else ""

    def build_page_links(self, following: str | None, parameter: str = "cursor", **query: str) -> dict[str, str]:
        """Return two links of a list: to its next page, which begins at ``following``, and back to its first page. The
        second link is empty on the first page.
        """
        return {
            "next": self.url(self.name, **query, **{parameter: following}) if following else "",
            "first": self.url(self.name, **query) if self.request.GET.get(parameter) else "",
        }

    def build_hour_links(
        self, hours: Iterable[int], *args: str, by_clock: bool = False, **query: str
    ) -> list[tuple[str, str, str]]:
        """Return the links to the periods that a page can show: the number of hours, the text and the URL.

        With ``by_clock`` the figures are of whole hours by the clock, and the first period begins with the hour before this
        one.
        """
        names = {168: _("last 7 days")}
        if by_clock:
            begin = (time.time() // 3600 - 1) * 3600
            names |= dict.fromkeys((1, 2), _("since %(time)s") % {"time": time_of_day(begin)})
        return [
            (
                str(count),
                names.get(count) or ngettext("last hour", "last %(hours)d hours", count) % {"hours": count},
                self.url(self.name, *args, hours=str(count), **query),
            )
            for count in hours
        ]

    def menu(self) -> list[tuple[StrOrPromise, list[dict[str, Any]]]]:
        """Return the groups of the menu with the pages that the user may see, and the outbox, which belongs to all
        queues.
        """
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
    """Return the error that a form shows at a field if the engine refuses the field's value."""
    return forms.ValidationError(_("This can't be used: %(error)s") % {"error": error})


def run_form_check(check: Callable[..., T], *values: Any) -> T:
    """Return the result of ``check``. If it refuses the values, raise a form error."""
    try:
        return check(*values)
    except errors.TaskValidationError as error:
        raise refusal(error) from None


def at_most(count: int) -> str:
    """Return a note about the maximum number of tasks per request; empty if one request can cancel all ``count``
    tasks.
    """
    text = _("At most %(most)s tasks are canceled at once; then you confirm to go on.")
    return text % {"most": number(PURGES_PER_REQUEST)} if count > PURGES_PER_REQUEST else ""


def lane_rows(
    lanes: Mapping[Lane, LaneStats], waits: Mapping[Lane, Percentiles]
) -> list[tuple[Lane, LaneStats, Percentiles | None]]:
    """Return the rows for ``lanes.html``; none if the queue has never had urgent or bulk tasks."""
    if not have_other_lanes(lanes):
        return []
    return [(lane, figures, waits[lane] if waits[lane].count else None) for lane, figures in lanes.items()]
