"""The Lua scripts from Python: loading them, naming keys, and building calls.

The access rules that a server user needs for them are in `acl`.
"""
