"""Ports: projects that use another queue, moved to django_fairque, with their own tests before and after."""
