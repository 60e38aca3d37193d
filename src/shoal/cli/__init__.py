"""Command line: `main` registers the commands, each noun has a module or package, `shared` has output, errors and options."""
