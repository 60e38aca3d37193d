"""Shoal inside other training libraries: one module each, which imports that library only when it is used."""
