"""Decides when to fetch tasks and report outcomes, and makes these calls. Leases wait here until a slot is free."""
