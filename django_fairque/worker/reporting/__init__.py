"""Reports what happened to tasks: log lines, Django signals, alerts and e-mails. The thread that relays the outbox is here,
too."""
