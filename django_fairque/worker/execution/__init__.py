"""Runs tasks in threads and on event loops, within their time limits and isolated from each other. Nothing here calls the
server."""
