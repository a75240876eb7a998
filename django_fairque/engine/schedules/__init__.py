"""Recurring tasks: `queue.schedules`, the operations on a shard, and due times.

Cron expressions and intervals become due times in `due_times`.
"""
