"""The shards of a queue: which one an operation goes to, which one is next, and changing their number.

Modules named ``…_sharded`` in other folders have the operations on several shards; they take `Shards` instead of `Commands`.
"""
