"""The supervisor starts the processes that run tasks, renews their leases, and replaces or stops them. Modules here run in the
supervisor, in the fork server, or at the start of a worker process."""
