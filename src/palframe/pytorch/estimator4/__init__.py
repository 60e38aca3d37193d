"""One version's modules, as scripts import them."""
