"""Fast reading and writing for the store: reused buffers, direct I/O and threads."""
