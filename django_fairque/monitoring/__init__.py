"""Watching queues: figures for people, and rules that say when something is wrong."""
