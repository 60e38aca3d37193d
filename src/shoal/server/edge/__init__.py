"""The edge of a server: TLS, the reverse proxy in front of it, and limits of what a stranger's connection may cost."""
