"""The import name of NetMind's runtime; everything is in `shoal.compat.netmind`."""
