"""Health probes and metrics over HTTP.

The module `probes` contains views for a project's URLs; `metrics_server` contains the server for a worker's own port.
"""
