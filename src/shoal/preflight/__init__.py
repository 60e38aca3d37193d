"""A few true steps of a script in a job's own environment, watched from inside its process. Unmodified scripts are run.

It is loaded by path, under a name of its own, by an interpreter that may not know shoal: nothing here imports the rest of it.
"""
