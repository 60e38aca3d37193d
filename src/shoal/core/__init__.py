"""Shared vocabulary of all packages: job specs, states, wire schemas, ids, errors and settings. Depends on pydantic only."""
