"""Checks of every node before a run starts."""
