"""Which shard an operation goes to, and how the replies of several shards become one.

Modules named ``…_sharded`` mirror the operations of a single shard, with `Shards` in place of `Commands`. For a queue of one
shard they change nothing.
"""
