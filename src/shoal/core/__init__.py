"""What every other room may import: specs, states, wire schemas, ids, errors, settings. Pydantic only."""
