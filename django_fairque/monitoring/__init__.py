"""Watches queues: figures for people, and rules that notice problems."""
