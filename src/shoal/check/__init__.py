"""What can be told about training code without running it: findings (`shoal check`) and the lines it lacks (`shoal instrument`).

Nothing here executes or imports the code it looks at. Where it cannot be sure, it is silent.
"""
