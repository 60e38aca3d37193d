"""Integrations with other training libraries: one module per library, which is imported only when it is used."""
