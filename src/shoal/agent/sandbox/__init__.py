"""The sandbox: mounts, namespaces, users, system call filters, resource limits and network access."""
