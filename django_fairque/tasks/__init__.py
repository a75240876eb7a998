"""Tasks: declaring them, sending them, and the parts that a worker needs to run them."""
