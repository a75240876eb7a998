"""Dependencies between tasks, and the values that tasks pass to each other.

Messages between shards report the end of a task to its dependents on other shards.
"""
