"""Agents as tasks of Slurm jobs: for sites that have Slurm. Everything goes through the text of its command-line programs."""
