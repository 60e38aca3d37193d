"""Parts that several commands use: output, errors, options, sources, transfers."""
