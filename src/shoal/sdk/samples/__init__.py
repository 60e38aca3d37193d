"""Sample order, samplers, prepared loaders and the sample log."""
