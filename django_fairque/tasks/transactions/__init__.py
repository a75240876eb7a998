"""Tasks and database transactions: tasks that wait for a commit, how they are pushed after the commit, and whether a
transaction may be open.
"""
