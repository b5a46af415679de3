"""Machines that the user names, and reaches by ssh: their names, what they are, and what is copied to them."""
