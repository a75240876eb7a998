"""`FairQueue` and `AsyncFairQueue`, the queue's public classes.

`async_queue` is generated from `queue` and the modules of its parts. `executor` has what both share.
"""
