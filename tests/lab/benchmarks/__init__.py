"""Benchmarks: ``python -m tests.lab.benchmarks [--quick] [PART …]`` prints tables of figures; nothing here is asserted."""
