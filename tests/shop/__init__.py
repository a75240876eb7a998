"""An app of the tests' own, with models of every kind."""
