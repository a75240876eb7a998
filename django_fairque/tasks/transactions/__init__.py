"""Database transactions: tasks that wait for a commit, their push after it, and whether a transaction may be open."""
