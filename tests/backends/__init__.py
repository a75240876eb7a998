"""The backend of django.tasks, through the public surface of django.tasks: the same tests on every Django."""
