"""The Slurm engine: agents are tasks of Slurm jobs. All communication uses the text of Slurm's command-line programs."""
