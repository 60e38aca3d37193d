"""Files of NetMind's swarm examples that its guide leaves unchanged. Scripts without them import these."""
