"""Requests on their way to the server: connections, retries, cluster redirects and node health.

The checks of a server's version and settings belong here, too.
"""
