"""Modules that several parts of a worker share: options, the log, waiting, and the board on which a process reports."""
