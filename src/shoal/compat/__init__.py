"""Other systems' programming interfaces, as thin adapters on Shoal's own. Nothing here is needed by native scripts."""
