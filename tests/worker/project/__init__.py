"""A Django project of tasks that misbehave in every way; its worker processes run in tests."""
