from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("favicon.ico", RedirectView.as_view(url=static("admin/img/icon-clock.svg"))),  # browsers ask for one unasked
    # All visitors of a hosted demonstration have one account, whose password nobody may change.
    *([path("admin/password_change/", RedirectView.as_view(url="/admin/"))] if settings.DEMO_HOST else []),
    path("admin/", admin.site.urls),
    path("fairque/", include("django_fairque.urls")),
]
