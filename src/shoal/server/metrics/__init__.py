"""Metrics: records to points (`intake`), points to columns, columns to charts; only `reads` and `writes` use the database."""
