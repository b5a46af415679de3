"""Configurations of other programs, and plans of runs, as presets."""
