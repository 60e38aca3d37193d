"""Leases: machine shares rented to people, the SSH gateway, snapshots."""
