"""Fakes, factories and contract suites, for our own tests and for those of plug-ins."""
