"""A Django project with the smallest tasks there are; its server comes from the environment."""
