"""Declaring tasks, sending tasks, and the parts that a worker needs to run tasks."""
