"""An application with customers on different plans, who export reports."""
