"""CUDA on a machine without it, for debugging: scripts that hard-code `cuda:0` and nccl run on CPU and gloo.

`startup/` goes on PYTHONPATH and patches torch when it is imported, in every Python process below, if SHOAL_EMULATE_CUDA
is 1. The files here are loaded by their path, by any interpreter: the standard library only, and nothing of shoal.
"""
