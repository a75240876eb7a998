"""Recurring tasks: `queue.schedules`, and due times.

Cron expressions and intervals become due times in `due_times`.
"""
