"""Tasks: declaring them, sending them, and what a worker needs to run them."""
