"""People and access: accounts, sessions, keys, secrets, workspaces, invitations."""
