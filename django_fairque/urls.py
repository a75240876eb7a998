"""``path("fairque/", include("django_fairque.urls"))``: probes, and metrics for Prometheus."""

from django.urls import path

from django_fairque.web import probes

app_name = "fairque"

urlpatterns = [
    path("live/", probes.live, name="live"),
    path("ready/", probes.ready, name="ready"),
    path("metrics/", probes.metrics, name="metrics"),
]
