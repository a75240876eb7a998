"""Reads about single tasks, runs and workers, and lists of them.

Search and paging belong here; sums over a whole queue belong to `statistics`.
"""
