"""The workers of a node: environment, command lines, start, output, stacks and interactive sessions."""
