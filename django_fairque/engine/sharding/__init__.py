"""The shards of a queue: to which shard an operation goes, which shard is next, and changing their number.

Operations in other folders take `Shards` and send each call to the right shard, or `Commands`, which belong to one
shard.
"""
