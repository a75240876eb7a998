"""The names that the public interface promises: each written once, where it is imported or looked up from."""

from __future__ import annotations

QUEUE = """
    push push_batch pop pop_batch finish fail release renew settle cancel get_task tasks get_queue_sizes get_queue_sizes_batch
    get_stats health users user dlq dependencies xcom schedules check_invariants
"""
USER = "pause resume set_weight set_max_running set_rate purge stats"
LETTERS = "list get requeue requeue_all discard cleanup"
SCHEDULES = "add remove pause resume run_now list upcoming"
XCOM = "push pull"

MODULES = {
    "django_fairque": """
        task Priority Retry Discard current_task BatchResult TaskResult
        FairQueue AsyncFairQueue get_queue aget_queue Task TaskState PushResult Lease Outcome DLQEntry calculate_score
        DependencyView UserQueue Violation
        FairQueueConfig QueueConfig RedisConfig WorkerConfig
        FairQueueError LuaScriptError TaskValidationError RedisConnectionError TaskSerializationError ConfigurationError
        DependencyCycleError StaleLeaseError BacklogFullError TaskNotFoundError
    """,
    "django_fairque.events": "on_create on_update on_delete on_m2m changed",
    "django_fairque.signals": """
        task_pushed task_started task_finished task_failed task_retried task_dead task_canceled sla_at_risk sla_violated
        task_promoted task_given_back worker_started worker_stopped
    """,
    "django_fairque.testing": "FairqueTestMixin capture_tasks run_tasks assert_enqueued assert_fair eager",
    "django_fairque.testing.plugin": "fairque fairque_run fairque_server",
}
"""Names that can be imported from a module."""

CLASSES = {
    "django_fairque.FairQueue": QUEUE,
    "django_fairque.AsyncFairQueue": QUEUE,
    "django_fairque.UserQueue": USER,
    "django_fairque.engine.queue.async_queue.AsyncUserQueue": USER,
    "django_fairque.engine.dead_letters.dead_letters.DeadLetterQueue": LETTERS,
    "django_fairque.engine.queue.async_queue.AsyncDeadLetterQueue": LETTERS,
    "django_fairque.engine.schedules.schedules.Schedules": SCHEDULES,
    "django_fairque.engine.queue.async_queue.AsyncSchedules": SCHEDULES,
    "django_fairque.engine.dependencies.dependencies.XCom": XCOM,
    "django_fairque.engine.queue.async_queue.AsyncXCom": XCOM,
    "django_fairque.tasks.definition.TaskDefinition": "enqueue aenqueue enqueue_many using s",
    "django_fairque.TaskResult": """
        id state result wait refresh cancel progress errors position aresult await_ arefresh acancel aprogress aerrors aposition
        starts_in astarts_in
    """,
    "django_fairque.Task": """
        create task_id user_id priority payload retry_count max_retries created_at execute_after expires_at state sla_deadline
        is_ready_to_execute can_retry get_retry_delay increment_retry to_redis_dict from_redis_dict to_lua_args from_lua_result
    """,
    "django_fairque.DLQEntry": "entry_id original_task failure_type reason moved_at retry_history get_age_seconds",
    "django_fairque.Lease": "task token expires_at",
    "django_fairque.DependencyView": "waiting blocked graph",
    "django_fairque.FairQueueConfig": "from_yaml from_settings create_redis_client create_async_redis_client",
    "django_fairque.RedisConfig": """
        url host port db username password ssl socket_timeout socket_connect_timeout health_check_interval cache
        sentinel cluster max_connections
    """,
    "django_fairque.WorkerConfig": """
        id assigned_users steal_targets poll_interval_seconds task_timeout_seconds max_concurrent_tasks
        graceful_shutdown_timeout lease_seconds processes handler
    """,
    "django_fairque.QueueConfig": """
        prefix fair_by head_start_seconds default_task_timeout default_max_retries max_retry_attempts
        pipeline_batch_size pipeline_timeout queue_cleanup_interval max_payload_bytes max_deliveries
        result_ttl failed_ttl sla starvation
    """,
}
"""The members of a class: methods and fields."""


def names(text: str) -> list[str]:
    return text.split()
