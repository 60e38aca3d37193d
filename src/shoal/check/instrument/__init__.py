"""Insertion of the SDK's lines into a plain training script; all other lines stay unchanged."""
