"""Notices of a run: when there is one, what it says, and the ways on which it goes."""
