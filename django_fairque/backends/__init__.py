"""The backend for `django.tasks`. On Django 5.2 it is the backend for the package django-tasks, which has the same
interface.
"""

from .backend import FairqueBackend
from .definition import FairqueTask, task

__all__ = ["FairqueBackend", "FairqueTask", "task"]
