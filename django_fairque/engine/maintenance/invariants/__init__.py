"""The invariant checker: it reads a queue at one moment and compares its keys with each other.

The rules about dependencies and about the fairness rings have a module each.
"""
