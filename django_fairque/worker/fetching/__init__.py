"""Decides when to fetch tasks and report outcomes, and makes these calls to the server. Fetched leases wait here until
a slot is free.
"""
