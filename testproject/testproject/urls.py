from __future__ import annotations

from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("favicon.ico", RedirectView.as_view(url=static("admin/img/icon-clock.svg"))),  # browsers ask for one unasked
    path("admin/", admin.site.urls),
    path("fairque/", include("django_fairque.urls")),
]
