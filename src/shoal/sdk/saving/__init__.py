"""Checkpoints: taken beside the training, written in the background, committed in one rename, found and verified again."""
