"""Figures about a whole queue: statistics, time series, the longest waits, usage, health and alerts.

Reads about single tasks belong to `inspection`.
"""
