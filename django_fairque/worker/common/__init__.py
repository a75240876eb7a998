"""Modules that several parts of a worker share: options, the log, waiting, and the memory in which a process reports
its current work to its supervisor.
"""
