"""Metrics without a database: records to points, points to columns, columns to charts. All pure."""
