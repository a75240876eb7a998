"""Users and the organizations that they belong to: limits, weights, pauses, and purging.

`wait_reason` reads why a task of a user does not start.
"""
