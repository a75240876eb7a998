"""The shards of a queue: which one an operation goes to, which one is next, and changing their number.

Operations in other folders take `Shards` and send each call to the right shard, or `Commands`, which are one shard's.
"""
