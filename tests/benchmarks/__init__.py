"""Benchmarks: ``python -m tests.benchmarks [--quick] [PART …]`` prints tables of figures; nothing here is asserted."""
