"""A Django project that sets OpenTelemetry up as its documentation says; its worker processes run in tests."""
