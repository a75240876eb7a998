"""The management commands, as a person types them."""
