"""What is executed on a node that is looked at: standard library, Python 3.8 or newer, nothing installed there."""
