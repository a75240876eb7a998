"""The values that the engine works with: tasks, leases, outcomes, options, ids and errors. Nothing here sends a request."""
