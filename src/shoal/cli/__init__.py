"""The command line: `main` registers, one file per noun acts, `_output` speaks, `_errors` ends."""
