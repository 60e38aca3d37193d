"""Drafts of jobs and sweeps that the console's forms hold until they are submitted."""
