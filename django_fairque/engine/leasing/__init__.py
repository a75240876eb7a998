"""Leases: fetching tasks, settling their outcomes, renewing leases, and waiting for work.

The operations are in `lease_ops`.
"""
