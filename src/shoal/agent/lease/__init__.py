"""Leases: nodes that are rented to a person, with their sandbox, volume, SSH server and snapshots."""
