"""Pages of one job, and of several side by side."""
