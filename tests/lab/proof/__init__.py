"""Proof at the level of the scripts: what is broken on purpose, everywhere, and must hold all the same."""
