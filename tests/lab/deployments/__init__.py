"""Deployments that are unusual, each tried with real processes: ``python -m tests.lab.deployments``."""
