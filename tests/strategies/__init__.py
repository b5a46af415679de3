"""Every preset that ships, trained through a real launch and looked at from inside the ranks."""
