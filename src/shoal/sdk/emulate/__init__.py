"""CUDA emulation for debugging: scripts that hard-code `cuda:0` and nccl run on CPU and gloo.

`startup/` is put on PYTHONPATH. If SHOAL_EMULATE_CUDA is 1, it patches torch when it is imported, in every Python process
of the job. The files here are loaded by path, by any interpreter: they use the standard library only, and nothing of shoal.
"""
