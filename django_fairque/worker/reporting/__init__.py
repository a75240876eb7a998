"""Reports the outcomes of tasks: log lines, Django signals, alerts and e-mails. Also contains the thread that relays the
outbox."""
