"""Wheels of this server's own packages and of what they need, and the index at which pip finds them."""
