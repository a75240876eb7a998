"""The project that the processes of the campaign run."""
