"""Files of NetMind's swarm examples that its guide says need no changing: found by scripts that come without them."""
