"""Leases: fetching tasks, settling their outcomes, renewing leases, and waiting for work.

The operations of one shard are in `lease_ops`, those of several shards in `lease_ops_sharded`.
"""
