"""Who runs next, and what happens after a failure: decided purely, acted on in loop.py."""
