"""distui: the cockpit for distributed PyTorch training. `distui.api` is its Python interface, docs/python.md the guide.

Ranks may load this file with Python 3.9.
"""

__version__ = "0.1.0"
