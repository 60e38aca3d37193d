"""Checkpoints: copied during training, written in the background, committed by one rename, verified before a resume.

Threads and owners (details in each module):
- The training thread takes saves (saver.py) and is the only one that starts them. At most one save is in progress.
- The copy thread (staging.py) copies parameters to host memory; the training thread joins it before the next optimizer step.
- The writer thread of rank 0 (writer.py) writes the copy and commits it with a rename. It touches no live tensor.
A crash at any point leaves either a complete checkpoint or a `.tmp-step-…` directory, which a resume ignores.
"""
