"""Settings of the web processes."""

from tests.worker.project.settings import *  # noqa: F403

ROOT_URLCONF = "tests.lab.deployments.web"
ALLOWED_HOSTS = ["*"]
