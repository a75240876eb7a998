"""Limits by key: their figures, and closing and opening them."""
