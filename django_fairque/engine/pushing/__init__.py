"""Accepting tasks: single ones, batches, graphs, and those from an outbox.

`push` has the operations, and `batching` decides which tasks of one call belong together.
"""
