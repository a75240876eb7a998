"""Tasks: declaring, sending, results, and what a worker does with them."""
