"""What happened, for people: of a user, of an incident, and in the last day of a queue."""
