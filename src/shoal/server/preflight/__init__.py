"""Preflights: short probe runs of a job before it is submitted, and their reports."""
