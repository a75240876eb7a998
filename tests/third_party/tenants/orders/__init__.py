"""The app whose tables are in the schema of each tenant."""
