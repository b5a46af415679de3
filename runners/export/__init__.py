"""A run as one file: written by `distui export`, opened by `distui replay` and `distui diagnose`."""
