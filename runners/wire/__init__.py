"""How viewers and agents talk: JSON lines over a unix socket that only this user may use."""
