"""An application that answers questions with a large language model."""
