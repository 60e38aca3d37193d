"""Datasets in memory and in mapped files."""
