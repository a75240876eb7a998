"""A project with django-tenants, on PostgreSQL."""
