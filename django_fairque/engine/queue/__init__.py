"""`FairQueue` and `AsyncFairQueue`, the queue's public classes.

`executor` runs operations on one shard or on all of them, and `read_operations` has the reads that several shards answer.
"""
