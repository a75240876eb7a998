"""What is answered by HTTP to machines: probes and scrapes."""
