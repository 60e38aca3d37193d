"""Runs: jobs as people think about them. Tags and notes, queries over all jobs of a workspace, saved views."""
