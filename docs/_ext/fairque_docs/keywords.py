"""Words by which readers search for a page, in addition to those of its text: an entry of the index leads the results."""

from __future__ import annotations

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

KEYWORDS: dict[str, tuple[str, ...]] = {
    "concepts": ("tenant", "weight", "lease", "task states"),
    "explanation/comparison": ("alternatives", "sqs fair queues", "temporal", "hatchet", "bullmq", "benchmark"),
    "explanation/fairness": (
        "noisy neighbor",
        "multi-tenant",
        "multitenancy",
        "fair scheduling",
        "fairness",
        "organization",
    ),
    "explanation/guarantees": (
        "exactly once",
        "at least once",
        "idempotency",
        "idempotent",
        "visibility timeout",
        "durability",
    ),
    "explanation/security": ("signature", "secret key", "threat model"),
    "guides/admin": ("admin", "dashboard"),
    "guides/deployment": ("kubernetes", "docker", "systemd"),
    "guides/django-tasks": ("django.tasks", "task backend"),
    "guides/from-celery": ("celery",),
    "guides/from-other-queues": ("rq", "django-rq", "django-q2", "migration from rq"),
    "guides/limits": ("limits by key", "rate limit", "throttle", "concurrency limit", "http 429", "mutex"),
    "guides/middleware": ("middleware", "headers"),
    "guides/model-events": ("model event", "django signal", "post_save"),
    "guides/monitoring": ("prometheus", "grafana", "health check", "alert", "webhook", "liveness probe"),
    "guides/observability": ("opentelemetry", "tracing", "structlog", "datadog", "new relic", "sentry"),
    "guides/pipelines": ("pipeline", "chain", "chord", "workflow", "dependencies", "xcom"),
    "guides/priorities-and-limits": ("priority", "sla", "quota", "plans"),
    "guides/production-checklists": ("aws", "elasticache", "heroku", "fly.io", "google cloud", "memorystore"),
    "guides/recipes": ("fan-out", "bulk import", "anti-pattern", "progress bar", "llm"),
    "guides/retries-and-errors": ("retry", "retries", "backoff", "dead letter", "dead-letter queue", "failed task"),
    "guides/scaling": ("sharding", "shards", "scale out", "autoscaling", "several servers", "cores"),
    "guides/schedules": (
        "cron",
        "periodic task",
        "schedule",
        "celery beat",
        "scheduled job",
        "overlap",
        "jitter",
        "catch up",
    ),
    "guides/servers": ("redis cluster", "sentinel", "valkey", "acl", "embedded server"),
    "guides/tasks": ("background job", "background task", "job", "enqueue", "batch"),
    "guides/testing": ("unit test", "pytest", "testing", "eager"),
    "guides/transactions": ("transaction", "outbox", "on commit", "atomic"),
    "guides/troubleshooting": ("task does not start", "stuck task", "error message"),
    "guides/upgrading": ("upgrade", "rolling deployment", "deprecation"),
    "guides/wagtail-and-django-tenants": ("wagtail", "django-tenants", "schema per tenant", "postgresql schema"),
    "guides/workers": ("worker", "graceful shutdown", "memory limit", "process pool"),
}


class Keywords(SphinxTransform):
    """Adds the words of a page to the index, before the index is read."""

    default_priority = 260

    def apply(self, **kwargs: object) -> None:
        section = next(iter(self.document.findall(nodes.section)), None)
        words = KEYWORDS.get(self.env.docname, ())
        if section is not None and words:
            entries = [("single", word, "", "main", None) for word in words]
            section.insert(1, addnodes.index(entries=entries))
