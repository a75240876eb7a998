"""Tasks that failed for good: listing, grouping, requeuing and discarding them.

`queue.dlq` is in `facade`, what it does on one shard is in `operations`.
"""
