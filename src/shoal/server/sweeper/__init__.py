"""Keeps sweeps going: what it sees, what it decides, what it does."""
