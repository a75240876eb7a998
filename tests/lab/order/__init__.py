"""Whether a version starts the tasks of lane normal in the same order as the version before lanes."""
