"""The effect of one user's tasks on other users' tasks, measured with real workers: ``python -m tests.lab.neighbors``.

Each case starts its own server and worker processes, lets one user (the neighbor) misbehave, and measures what the others
notice: extra starts, the 99th percentile of their wait, and wrong end states. A case fails if the others notice more than
its bound allows.
"""
