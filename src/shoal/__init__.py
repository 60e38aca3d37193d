"""Shoal: train PyTorch models on whatever machines you have.

Importing this package costs nothing; public names load on first use.
"""

__version__ = "0.1.0"
