"""Backups of a whole server: make, list, verify, restore; also on a schedule."""
