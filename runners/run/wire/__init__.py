"""Protocol of viewers and agents: JSON lines over a unix socket that only this user may use."""
