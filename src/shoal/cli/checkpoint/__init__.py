"""`shoal checkpoint`."""
