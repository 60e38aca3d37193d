"""JupyterLab of running jobs, as browsers reach it."""
