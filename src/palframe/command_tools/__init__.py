"""The command `palframe`."""
