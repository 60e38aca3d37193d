"""Reads the records that the SDK inside the workers writes for its agent, and turns them into reports."""
