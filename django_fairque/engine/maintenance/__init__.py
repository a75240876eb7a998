"""The work that keeps a queue in order: sweeps, pausing, repair, and the checks before a repair.

Workers run it at intervals; operators start a repair.
"""
