"""Of what is in use here."""

from shoal import __version__  # noqa: F401
