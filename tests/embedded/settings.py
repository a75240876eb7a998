"""For a `manage.py` that needs nothing but the command."""

SECRET_KEY = "not a secret"
INSTALLED_APPS = ["django_fairque"]
USE_TZ = True
