"""Fakes, factories and contract suites, for Shoal's own tests and those of plug-ins."""
