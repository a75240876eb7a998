"""Accepting tasks: single ones, batches, graphs, and those from an outbox.

`push` works on one shard, `push_sharded` on several, and `batching` splits a bulk push into calls.
"""
