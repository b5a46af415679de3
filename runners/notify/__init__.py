"""Notifications of a run: their rules, their texts, and their channels."""
