"""Accepting tasks: single tasks, batches, graphs, and tasks from an outbox.

`push` has the operations, and `batching` decides which tasks of one call belong together.
"""
