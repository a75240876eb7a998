GOOD, BAD, FIXED = "v1", "v2", "v3"
"""The releases of the site, in their order. The bad one makes a task slow, and others fail."""
RUNS = "tests:runs"
"""The list on the server to which each run of a task adds an entry."""
