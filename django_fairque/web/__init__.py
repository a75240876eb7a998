"""Health probes and metrics over HTTP.

Views for a project's URLs are in `probes`; a worker's own port is in `metrics_server`.
"""
