"""Settings of a worker with another signing key."""

from tests.worker.project.settings import *  # noqa: F403

SECRET_KEY = "of-another-deployment"
