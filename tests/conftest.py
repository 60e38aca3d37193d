"""For all tests: hypothesis takes no slow machine for a slow test."""

from hypothesis import settings

settings.register_profile("shoal", deadline=None)
settings.load_profile("shoal")
