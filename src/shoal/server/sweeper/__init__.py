"""The sweeper: a thread that starts, prunes and ends trials of sweeps. memory.py reads, decide.py decides, act.py acts."""
