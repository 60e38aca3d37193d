"""Data of a node: downloads its inputs, uploads its checkpoints and media, and shares chunks with other nodes."""
