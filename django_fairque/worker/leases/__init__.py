"""Keeps the leases of running tasks: heartbeats renew these leases, and leases of dead workers are given back. Outages
of the server are also handled here.
"""
