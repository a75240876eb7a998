"""Bread for many customers."""
