"""What the training environment's Python executes. Stdlib and torch only; Python 3.9 and newer.

That Python need not have distui installed: `launch.py` and the hook load this folder as a package by its path.
"""
