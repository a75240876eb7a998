"""Questions as people type them into a search box, who know django_fairque from README only, and the pages that answer them.

They were written before the index that answers them. If a question fails, improve the pages or the words of the field
(``docs/reference/glossary.md``), never the question.
"""

from __future__ import annotations

GUARANTEES, FAIRNESS = "explanation/guarantees", "explanation/fairness"
RECIPES, RETRIES, LIMITS = "guides/recipes", "guides/retries-and-errors", "guides/limits"
WORKERS, SCALING, TROUBLE = "guides/workers", "guides/scaling", "guides/troubleshooting"
TASKS, LANES, WEIGHTS = "guides/tasks", "guides/lanes", "guides/priorities-and-limits"
CELERY, MONITORING, FAQ = "guides/from-celery", "guides/monitoring", "guides/faq"

QUESTIONS: dict[str, set[str]] = {
    "retry with exponential backoff": {RETRIES},
    "memory leak worker": {WORKERS},
    "OOM killed worker": {WORKERS, TROUBLE},
    "monitor queue length prometheus": {MONITORING, "reference/metrics-and-signals"},
    "bulk import one tenant blocks others": {RECIPES, FAIRNESS},
    "newsletter to all customers": {RECIPES, LANES},
    "task stuck, not running": {TROUBLE},
    "dead letter requeue": {RETRIES},
    "how many workers": {WORKERS, SCALING},
    "chord of many tasks": {"guides/pipelines", CELERY},
    "global rate limit": {LIMITS},
    "task runs twice": {RECIPES, GUARANTEES, TROUBLE},
    "run a job every day at 3am": {"guides/schedules"},
    "delay a task by 10 minutes": {"guides/schedules"},
    "apply_async countdown eta": {CELERY, "guides/schedules"},
    "CELERY_TASK_ALWAYS_EAGER in unit tests": {"guides/testing", CELERY},
    "prevent duplicate jobs": {RECIPES, TASKS},
    "how do I cancel a running job": {TASKS, FAQ},
    "get return value of background task in view": {TASKS},
    "limit concurrency per customer": {WEIGHTS, LIMITS},
    "at-least-once delivery": {GUARANTEES},
    "what happens when redis goes down": {FAQ, "guides/servers", GUARANTEES},
    "redis maxmemory eviction": {"guides/servers", TROUBLE},
    "password reset email waits behind reports": {LANES},
    "systemd unit file for workers": {"guides/deployment"},
    "kubernetes liveness probe": {MONITORING, "guides/deployment"},
    "graceful shutdown sigterm": {WORKERS},
    "soft time limit exceeded": {WORKERS, RETRIES, TROUBLE},
    "progress bar for long running task": {RECIPES},
    "backpressure when queue is full": {WEIGHTS},
    "DoesNotExist because task starts before transaction is committed": {"guides/transactions", TROUBLE},
    "can I pass a model instance as argument": {TASKS, RECIPES, FAQ},
    "async def tasks": {WORKERS, TASKS, FAQ},
    "enqueue thousands of jobs at once": {TASKS, RECIPES},
    "web ui like flower or sidekiq dashboard": {"guides/admin", CELERY},
    "circuit breaker for a failing external api": {LIMITS},
    "rolling deploy with old tasks still in queue": {"guides/upgrading"},
    "parent child jobs (bullmq flows)": {"guides/pipelines"},
    "is the payload signed or pickled": {"explanation/security"},
    "dedicated workers for one big tenant": {SCALING, WORKERS},
}
