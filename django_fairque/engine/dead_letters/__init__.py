"""Tasks that failed for good: listing, grouping, requeuing and discarding them.

`queue.dlq` and what it does are in `dead_letters`, the letters and their filters in `letters`.
"""
