"""Acts on many tasks, which workers carry out in steps: retry and discard dead letters, cancel waiting tasks; and their undo."""
