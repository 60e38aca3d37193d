"""Accelerators of the machine, read from their drivers, and the usage of its devices."""
