"""Tasks that failed for good: listing, grouping, requeuing and discarding them.

`dead_letters` has `queue.dlq` and its operations, `letters` the dead letters and their filters.
"""
