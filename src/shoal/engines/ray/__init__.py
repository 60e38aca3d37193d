"""Agents on many machines, through Ray: it carries the word to start and end them, and tells which machines are there.

`head` runs the cluster's centre on the server's machine, `node` keeps Ray alive on each machine, `gateway` is the one
program that speaks to Ray (nothing else here imports it), `engine` is what the server holds.
"""
