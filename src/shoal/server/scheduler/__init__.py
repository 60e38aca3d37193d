"""The scheduler: which job starts next, where, and what happens after a failure. Decisions are pure; loop.py acts on them."""
