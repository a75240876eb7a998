"""Reports for people: about a user, about an incident, and about the last day of a queue."""
