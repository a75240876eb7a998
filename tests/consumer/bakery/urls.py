"""The admin, and the probes."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("fairque/", include("django_fairque.urls"))]
