"""Parts of a job's pages: logs, charts, code, comparisons, the offline share file."""
