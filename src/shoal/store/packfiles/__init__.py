"""Packs, which hold many chunks in one blob, and the index that finds chunks in them.

Why it is safe: a pack never changes and is named by the hash of its head, so two writers of one pack write the same bytes.
The blob is published before the index learns of it. The index is only a cache: after a crash between the two, `refresh` reads
the heads of packs that it does not know, and entries of packs that no longer exist are dropped when they are used.
"""
