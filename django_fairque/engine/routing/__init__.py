"""One queue over its shards: which shard an operation goes to, and how the answers of several become one.

The modules beside this mirror the operations of a single shard, with `Shards` in place of `Commands`. Of a queue of one
shard each is what it was before.
"""
