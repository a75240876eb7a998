"""Tasks that depend on other tasks: who blocks whom, and the values that they pass on.

Messages between shards report the end of a task to its dependents on other shards.
"""
