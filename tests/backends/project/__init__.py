"""A project that uses both kinds of tasks; worker processes run on its settings."""
