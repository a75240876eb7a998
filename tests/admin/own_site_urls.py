"""The URLs of a project with its own admin site, in which it registers the pages by hand."""

from django.contrib.admin import AdminSite
from django.urls import path

from django_fairque.admin.outbox import OutboxEntryAdmin
from django_fairque.admin.site import QueueAdmin
from django_fairque.models import OutboxEntry, Queue

backoffice = AdminSite(name="backoffice")
backoffice.register(Queue, QueueAdmin)
backoffice.register(OutboxEntry, OutboxEntryAdmin)
urlpatterns = [path("office/", backoffice.urls)]
