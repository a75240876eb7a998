"""Keeps the leases of running tasks: heartbeats renew them, and leases of dead workers are given back. Outages of the server
are handled here, too."""
