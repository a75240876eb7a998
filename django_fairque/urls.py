"""URLs of the health probes and of the metrics for Prometheus: ``path("fairque/", include("django_fairque.urls"))``."""

from django.urls import path

from django_fairque.web import probes

app_name = "fairque"

urlpatterns = [
    path("live/", probes.live, name="live"),
    path("ready/", probes.ready, name="ready"),
    path("metrics/", probes.metrics, name="metrics"),
]
