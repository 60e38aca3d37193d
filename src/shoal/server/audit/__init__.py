"""The audit log: recording of actions, reading and verification."""
